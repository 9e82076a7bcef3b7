"""Harbor task directories -> tasks.

    task.toml  instruction.md  environment/Dockerfile  tests/test_*.py  solution/solve.sh

    only files copied in      ->  the base image, in every sandbox
    other Dockerfiles         ->  built, in Docker
    docker_image = "NAME"     ->  pulled unless it is here, in Docker

The agent's tree is what lies below the working directory. With an image of its own a task has it
there (`root`); with the base image only if something in the task names that folder, and then it
needs bubblewrap or Docker. `test.sh` only starts pytest in the tasks that are supported, so our
runner takes its place, and the image must have pytest. The solution is run once, by a user who may
write the tree alone, to get the gold patch; if it names /solution it lies there. The tests are run
before and after it to learn which of them must pass. Everything else is refused in one line:
several steps, services, tests that name /tests or /solution, an image that works in /.

Source: the documentation of Harbor's task format (harborframework.com/docs/tasks).
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sao_gym.errors import InputError, MachineryError
from sao_gym.repo import swe
from sao_gym.repo.grade import box_of, is_test_file, run_tests
from sao_gym.repo.import_swebench import Imported
from sao_gym.repo.task import RepoTask
from sao_gym.sandbox import WORK, Box, Sandbox
from sao_gym.sandboxes import images
from sao_gym.tree import Entry, Patch, Tree, apply, between, read_folder

_FILES = "environment"
_TREE = f"{WORK}/tree"
_SOLUTION, _TESTS = "/solution", "/tests"
_STARTS_TESTS = "tests/test.sh"
_LARGEST = 256 << 20  # bytes of a tree
_LONGEST = 1e6  # seconds that may be asked for
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
        except OSError as error:
            yield Imported(str(folder), None, f"cannot be read: {error}")


class NeedsBuildError(InputError):
    """The Dockerfile does more than to copy files into the base image."""


class Start(NamedTuple):
    """What the agent starts from."""

    workdir: str
    tree: dict[str, Entry]
    image: str = "base"


def task_of(folder: Path, sandbox: Sandbox) -> RepoTask:
    """Raises InputError for what is not supported, OSError if a file cannot be read,
    MachineryError if a run broke."""
    settings = _settings(folder)
    instruction = _text(folder / "instruction.md")
    tests = {f"tests/{path}": entry for path, entry in _below(folder / "tests").items()}
    solution = _below(folder / "solution")
    _check(tests, solution)
    start = start_of(folder, settings, sandbox)
    told = {"instruction.md": Entry("file", instruction.encode())}
    run = {path: entry for path, entry in tests.items() if path != _STARTS_TESTS}
    named = any(_naming(files, start.workdir) for files in (run, solution, told, start.tree))
    draft = RepoTask(
        id=str(_table(settings, "task").get("name") or folder.resolve().name),
        instruction=instruction,
        tree=start.tree,
        tests=tests,
        fail_to_pass=(),
        runner="pytest",
        image=start.image,
        root=start.workdir if named or start.image != "base" else None,
        seconds=_seconds(settings, "verifier", "timeout_sec"),
        extra={
            "harbor": {
                "metadata": _plain(settings.get("metadata", {})),
                "workdir": start.workdir,
            }
        },
    )
    gold = _gold(draft, solution, sandbox)
    before = _passing(draft, start.tree, sandbox)
    after = _passing(draft, apply(start.tree, gold), sandbox)
    if not after - before:
        raise InputError("its solution makes no test pass that failed before")
    return replace(
        draft,
        gold=gold,
        fail_to_pass=tuple(sorted(after - before)),
        pass_to_pass=tuple(sorted(after & before)),
    )


def start_of(folder: Path, settings: Mapping[str, Any], sandbox: Sandbox) -> Start:
    """The files and the image of a task; an image is pulled or built where it has to be.

    Raises:
        InputError: this sandbox, or none, can do it.
        MachineryError: the image cannot be had.
    """
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / _FILES / name).is_file():
            raise InputError(f"{name}: services are not supported")
    if image := str(_table(settings, "environment").get("docker_image") or ""):
        if sandbox.name != "docker":
            raise InputError(f"docker_image {image!r} needs Docker; this is {sandbox.name}")
        images.pull(image)
        return _inside(image, sandbox)
    try:
        return copied(folder)
    except NeedsBuildError:
        if sandbox.name != "docker":
            raise
    seconds = _seconds(settings, "environment", "build_timeout_sec")
    return _inside(images.build(folder / _FILES, seconds=seconds), sandbox)


def _inside(image: str, sandbox: Sandbox) -> Start:
    """What an image has below its working directory."""
    workdir = posixpath.normpath(images.workdir(image))
    if workdir == "/":
        raise InputError(f"image {image}: its working directory is /; name a folder (WORKDIR)")
    box = sandbox.start(swe.as_made(image))
    try:
        return Start(workdir, _got(box, workdir), image)
    finally:
        box.close()


def copied(folder: Path) -> Start:
    """What a Dockerfile makes that only copies files into the base image.

    Raises:
        NeedsBuildError: it does more.
        InputError: it is wrong.
    """
    workdir, tree, started = "/", dict[str, Entry](), False
    for line in _instructions(_text(folder / _FILES / "Dockerfile")):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "FROM":
            if started or not _BASES.match(rest):
                raise NeedsBuildError(
                    f"Dockerfile: {line!r} needs an image that is not the base image, hence Docker"
                )
            started = True
        elif word == "WORKDIR" and "$" not in rest:
            workdir = posixpath.normpath(posixpath.join(workdir, rest))
        elif word in ("COPY", "ADD"):
            tree |= _copied(folder / _FILES, workdir, line, rest)
        elif word == "RUN" and all(_NO_STEP.match(part.strip()) for part in rest.split("&&")):
            continue  # the base image has it
        elif word not in _HARMLESS:
            raise NeedsBuildError(
                f"Dockerfile: {line!r} needs a build, hence Docker; elsewhere files are copied only"
            )
    if not started:
        raise InputError("Dockerfile: no FROM")
    if sum(len(entry.data) for entry in tree.values()) > _LARGEST:
        raise _too_large(workdir)
    return Start(workdir, tree)


def _instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", text))
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def _copied(context: Path, workdir: str, line: str, rest: str) -> dict[str, Entry]:
    try:
        parts = shlex.split(rest)
    except ValueError as error:
        raise InputError(f"Dockerfile: {line!r}: {error}") from None
    if len(parts) != 2 or any(part.startswith("--") or set("*?[$") & set(part) for part in parts):
        raise NeedsBuildError(
            f"Dockerfile: {line!r}: only `{line.split()[0]} FROM TO` goes without Docker"
        )
    source, target = Path(os.path.realpath(context / parts[0])), parts[1]
    absolute = posixpath.normpath(posixpath.join(workdir, target))
    prefix = workdir.rstrip("/") + "/"
    below = absolute.rstrip("/") + "/"
    if not below.startswith(prefix):
        raise NeedsBuildError(
            f"Dockerfile: {line!r} writes outside the working directory {workdir}; needs Docker"
        )
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
    into = not at or target.rpartition("/")[2] in ("", ".", "..")
    name = at + source.name if into else at.rstrip("/")
    entry = read_folder(source.parent, skip=())[source.name]
    return {name: entry}


def _settings(folder: Path) -> Mapping[str, Any]:
    try:
        settings = tomllib.loads(_text(folder / "task.toml"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"task.toml: {error}") from None
    if (folder / "steps").is_dir() or settings.get("steps"):
        raise InputError("tasks of several steps are not supported")
    return settings


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no {path.name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None
    if "\0" in text:
        raise InputError(f"{path.name} is no text: it has a NUL character")
    return text


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"task.toml: {name!r} is no table")
    return table


def _seconds(settings: Mapping[str, Any], table: str, name: str) -> float:
    value = _table(settings, table).get(name, 600.0)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= _LONGEST:  # false of nan, too
        raise InputError(
            f"task.toml: {table}.{name} is no number of seconds above 0 and up to {_LONGEST:g}"
        )
    return float(value)


def _below(folder: Path) -> dict[str, Entry]:
    return read_folder(folder) if folder.is_dir() else {}


def _check(tests: Tree, solution: Tree) -> None:
    if not any(is_test_file(path) for path in tests):
        raise InputError("its tests are no pytest files; only those are supported")
    if "solve.sh" not in solution:
        raise InputError("no solution/solve.sh; without a gold patch a task cannot be checked")
    run = {path: entry for path, entry in tests.items() if path != _STARTS_TESTS}
    for absolute in (_TESTS, _SOLUTION):
        if path := _naming(run, absolute):
            raise InputError(
                f"{path} names {absolute}, which is not there when tests run: they lie in the "
                "folder `tests` of the tree"
            )


def _naming(files: Tree, folder: str) -> str:
    """The first of the files that names an absolute folder; "" if none does."""
    if folder == "/":
        return ""
    # as a path of its own: not in `x/app`, `$X/app`, `/app2`, `/app.py`
    named = re.compile(rb"(?<![\w./~*})-])" + re.escape(os.fsencode(folder)) + rb"(?!\w|-|\.\w)")
    return next((path for path, entry in files.items() if named.search(entry.data)), "")


def _gold(task: RepoTask, solution: Tree, sandbox: Sandbox) -> Patch:
    """What the solution changes. It runs in a box as the agent has one."""
    spec, at = box_of(task), task.root or _TREE
    script, place = "../solution/solve.sh", f"{WORK}/solution"
    if task.root is not None or _naming(solution, _SOLUTION):
        script, place = f"{_SOLUTION}/solve.sh", _SOLUTION
        spec = replace(spec, empty=(*spec.empty, _SOLUTION))
    box = sandbox.start(spec)
    try:
        box.put(task.tree, at=at)
        box.put(solution, at=place)
        ran = box.run(["bash", script], seconds=task.seconds, cwd=at)
        after = _got(box, at)
    finally:
        box.close()
    if ran.code:
        said = ran.output.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise InputError(f"solution/solve.sh ended with exit code {ran.code} ({''.join(said)})")
    return between(task.tree, after)


def _got(box: Box, at: str) -> dict[str, Entry]:
    try:
        return box.get(at, limit=_LARGEST)
    except MachineryError as error:
        if error.kind == "too_large":
            raise _too_large(at) from None
        raise


def _too_large(at: str) -> InputError:
    return InputError(f"{at} holds more than {_LARGEST >> 20} MiB; no tree may be larger")


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
