"""Harbor task directories -> tasks, as far as that goes without a registry.

    task.toml  instruction.md  environment/Dockerfile  tests/test_*.py  solution/solve.sh

Supported: one step, tests for pytest, and an environment that is the base image with files copied
in. `test.sh` only starts pytest in such tasks, so our runner takes its place. The solution is run
once to get the gold patch, and the tests are run before and after it to learn which of them must
pass. Everything else is refused in one line: build steps, services, absolute paths.

Source: the documentation of Harbor's task format (harborframework.com/docs/tasks).
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sao_gym.errors import InputError, MachineryError
from sao_gym.repo.grade import is_test_file, run_tests
from sao_gym.repo.import_swebench import Imported
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import WORK, BoxSpec, Sandbox
from sao_gym.tree import Entry, Patch, apply, between, read_folder

_FILES = "environment"
_TREE = f"{WORK}/tree"
_HARMLESS = ("ENV", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "ARG", "SHELL", "MAINTAINER")
_BASES = re.compile(r"(docker\.io/library/)?(python|debian|ubuntu)(:[\w.-]+)?$")
_NO_STEP = re.compile(
    r"(mkdir -p [\w/.-]+|(python3? -m )?pip3? install( --[\w-]+)* pytest([=<>~]=?[\w.]+)?)$"
)


def import_harbor(directory: Path | str, sandbox: Sandbox) -> Iterator[Imported]:
    """The task in a directory, or those in its folders.

    Raises:
        InputError: there is none.
    """
    directory = Path(directory)
    here = (directory / "task.toml").is_file()
    folders = [directory] if here else sorted(p.parent for p in directory.glob("*/task.toml"))
    if not folders:
        raise InputError(f"{directory}: no Harbor task here (no task.toml)")
    for folder in folders:
        try:
            yield Imported(str(folder), task_of(folder, sandbox))
        except (InputError, MachineryError) as error:
            yield Imported(str(folder), None, str(error))


def task_of(folder: Path, sandbox: Sandbox) -> RepoTask:
    """Raises InputError for what is not supported, MachineryError if a run broke."""
    settings = _settings(folder)
    workdir, tree = environment(folder)
    tests = {f"tests/{path}": entry for path, entry in read_folder(folder / "tests").items()}
    if not any(is_test_file(path) for path in tests):
        raise InputError("its tests are no pytest files; only those are supported")
    _no_absolute_paths(workdir, tests)
    draft = RepoTask(
        id=str(settings.get("task", {}).get("name") or folder.resolve().name),
        instruction=_text(folder / "instruction.md"),
        tree=tree,
        tests=tests,
        fail_to_pass=(),
        runner="pytest",
        seconds=float(settings.get("verifier", {}).get("timeout_sec", 600.0)),
        extra={"harbor": {"metadata": _plain(settings.get("metadata", {})), "workdir": workdir}},
    )
    gold = _gold(draft, folder, sandbox)
    before = _passing(draft, tree, sandbox)
    after = _passing(draft, apply(tree, gold), sandbox)
    if not after - before:
        raise InputError("its solution makes no test pass that failed before")
    return replace(
        draft,
        gold=gold,
        fail_to_pass=tuple(sorted(after - before)),
        pass_to_pass=tuple(sorted(after & before)),
    )


def environment(folder: Path) -> tuple[str, dict[str, Entry]]:
    """Working directory and files that a Dockerfile makes.

    Raises:
        InputError: it needs a build.
    """
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / _FILES / name).is_file():
            raise InputError(f"{name}: services are not supported")
    workdir, tree, started = "/", dict[str, Entry](), False
    for line in _instructions(_text(folder / _FILES / "Dockerfile")):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "FROM":
            if started or not _BASES.match(rest):
                raise InputError(f"Dockerfile: {line!r} needs an image that is not the base image")
            started = True
        elif word == "WORKDIR":
            workdir = rest if rest.startswith("/") else f"{workdir.rstrip('/')}/{rest}"
        elif word in ("COPY", "ADD"):
            tree |= _copied(folder / _FILES, workdir, line, rest)
        elif word == "RUN" and all(_NO_STEP.match(part.strip()) for part in rest.split("&&")):
            continue  # the base image has it
        elif word not in _HARMLESS:
            raise InputError(f"Dockerfile: {line!r} needs a build; only copied files are supported")
    if not started:
        raise InputError("Dockerfile: no FROM")
    return workdir, tree


def _instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", text))
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def _copied(context: Path, workdir: str, line: str, rest: str) -> dict[str, Entry]:
    parts = shlex.split(rest)
    if len(parts) != 2 or any(part.startswith("--") or "*" in part for part in parts):
        raise InputError(f"Dockerfile: {line!r}: only `{line.split()[0]} FROM TO` is supported")
    source, target = (context / parts[0]).resolve(), parts[1]
    absolute = target if target.startswith("/") else f"{workdir.rstrip('/')}/{target}"
    prefix = workdir.rstrip("/") + "/"
    below = f"{absolute.rstrip('/')}/".replace("/./", "/")
    if not below.startswith(prefix):
        raise InputError(f"Dockerfile: {line!r} writes outside the working directory {workdir}")
    if not source.is_relative_to(context.resolve()):
        raise InputError(f"Dockerfile: {line!r} reads outside {_FILES}")
    at = below.removeprefix(prefix)
    if source.is_dir():
        files = read_folder(source)
        made = {at + path: entry for path, entry in files.items()}
        if source == context.resolve():
            made.pop(f"{at}Dockerfile", None)
        return made
    if not source.is_file():
        raise InputError(f"Dockerfile: {line!r}: no such file")
    name = at + source.name if target.endswith(("/", ".")) or not at else at.rstrip("/")
    entry = read_folder(source.parent)[source.name]
    return {name: entry}


def _settings(folder: Path) -> Mapping[str, Any]:
    try:
        settings = tomllib.loads(_text(folder / "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"task.toml: {error}") from None
    if (folder / "steps").is_dir() or settings.get("steps"):
        raise InputError("tasks of several steps are not supported")
    if image := settings.get("environment", {}).get("docker_image"):
        raise InputError(f"docker_image {image!r}: its files are in a registry")
    return settings


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no {path.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None


def _no_absolute_paths(workdir: str, tests: Mapping[str, Entry]) -> None:
    """A test that looks at `/app/x` would look at nothing: trees are graded in a folder of ours."""
    if workdir == "/":
        return
    for path, entry in tests.items():
        if path.endswith(".py") and f"{workdir.rstrip('/')}/".encode() in entry.data:
            raise InputError(f"{path} names the absolute path {workdir}; use relative ones")


def _gold(task: RepoTask, folder: Path, sandbox: Sandbox) -> Patch:
    solution = read_folder(folder / "solution") if (folder / "solution").is_dir() else {}
    if "solve.sh" not in solution:
        raise InputError("no solution/solve.sh; without a gold patch a task cannot be checked")
    box = sandbox.start(BoxSpec(image=task.image))
    try:
        box.put(task.tree, at=_TREE)
        box.put(solution, at=f"{WORK}/solution")
        ran = box.run(["bash", "../solution/solve.sh"], seconds=task.seconds, cwd=_TREE)
        after = box.get(_TREE)
    finally:
        box.close()
    if ran.code:
        said = ran.output.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise InputError(f"solution/solve.sh ended with exit code {ran.code} ({''.join(said)})")
    return between(task.tree, after)


def _passing(task: RepoTask, tree: Mapping[str, Entry], sandbox: Sandbox) -> set[str]:
    answer = run_tests(task, {**tree, **task.tests}, sandbox=sandbox, everything=True)
    if answer.get("timed_out"):
        raise InputError(f"its tests did not end within {task.seconds:g} s")
    return {name for name, (passed, _) in answer["outcomes"].items() if passed}


def _plain(value: Any) -> Any:
    """TOML values as JSON has them."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
