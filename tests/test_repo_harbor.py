"""Harbor tasks that name absolute paths, or need an image of their own."""

from __future__ import annotations

import contextlib
import os

import pytest
from repo_tasks import FAULTY, KINDS, RIGHT, TESTS, file, harbor, opened, patch

from sao_gym.envs.repo_fix import RepoFix
from sao_gym.envs.repo_fix.bench import shared_bench
from sao_gym.errors import MachineryError
from sao_gym.repo import import_harbor as harbors
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.importers import import_harbor
from sao_gym.repo.store import load_tasks, save_task
from sao_gym.sandboxes import images
from sao_gym.sandboxes.process import ProcessSandbox
from sao_gym.tree import Patch

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Part of what is built, so that each test process has images of its own and removes them."""

NAMING = (
    "from pathlib import Path\n\nfrom size.core import larger\n\n\n"
    "def test_larger():\n    assert larger(1, 2) == 2\n\n\n"
    "def test_equal():\n    assert larger(3, 3) == 3\n\n\n"
    "def test_where():\n    assert Path('/app/size/core.py').is_file()\n"
)
SOLUTION = "sh /solution/mend.sh /app/size/core.py\n"
MEND = "sed -i 's/a < b/a > b/' $1\n"
MADE = (
    "from pathlib import Path\n\nfrom size.core import larger\n\n\n"
    "def test_larger():\n    limit = int(Path('made/limit.txt').read_text())\n"
    "    assert larger(1, limit) == limit\n\n\n"
    "def test_equal():\n    assert larger(3, 3) == 3\n"
)


def imported(folder, sandbox):
    (found,) = import_harbor(folder, sandbox)
    assert found.why == ""
    return found.task


def refused(folder, sandbox) -> str:
    (found,) = import_harbor(folder, sandbox)
    assert found.task is None
    assert "\n" not in found.why
    return found.why


def judged(task, sandbox) -> None:
    assert task.gold == Patch({"size/core.py": file(RIGHT)}, ())
    assert grade(task, task.gold, sandbox=sandbox).resolved
    verdict = grade(task, EMPTY, sandbox=sandbox)
    assert (verdict.resolved, verdict.failed) == (False, (f"{TESTS}::test_larger",))


@pytest.mark.parametrize("kind", KINDS)
def test_absolute_paths_are_where_the_task_expects_them(kind: str, tmp_path) -> None:
    changes = {"solution/solve.sh": SOLUTION, "solution/mend.sh": MEND}
    with contextlib.closing(opened(kind)) as sandbox:
        task = imported(harbor(tmp_path, **{TESTS: NAMING}, **changes), sandbox)
        assert (task.image, task.root) == ("base", "/app")
        assert task.fail_to_pass == (f"{TESTS}::test_larger",)
        assert task.pass_to_pass == (f"{TESTS}::test_equal", f"{TESTS}::test_where")
        judged(task, sandbox)


def test_a_task_that_names_no_absolute_path_may_lie_anywhere(tmp_path) -> None:
    near = "# x/app/y, ./app, $HOME/app, /app2, /app-x, /app.py, lib/tests/y\n"
    folder = harbor(
        tmp_path,
        **{"environment/note.txt": near, "tests/conftest.py": near, "solution/near": near},
        **{"tests/test.sh": "cd /app; cp /solution/x .; pytest /tests\n"},
    )
    with contextlib.closing(ProcessSandbox()) as sandbox:
        assert imported(folder, sandbox).root is None


def test_a_tree_that_is_too_large_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harbors, "_LARGEST", 1 << 20)
    large = {"environment/note.txt": "x" * (1 << 20)}
    grown = {"solution/solve.sh": "head -c 1100000 /dev/zero > size/core.py\n"}
    with contextlib.closing(ProcessSandbox()) as sandbox:
        assert refused(harbor(tmp_path / "a", **large), sandbox).startswith(
            "/app holds more than 1 MiB"
        )
        assert "holds more than 1 MiB" in refused(harbor(tmp_path / "b", **grown), sandbox)


@pytest.fixture(scope="module")
def docker():
    made = opened("docker")
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(docker):
    sdk = pytest.importorskip("docker")
    with contextlib.closing(sdk.APIClient(version="auto")) as made:
        yield made


@pytest.fixture(scope="module")
def base(client) -> str:
    from sao_gym.sandboxes import base_image

    return base_image.ensure(client)


def recipe(base: str, *lines: str) -> str:
    return "\n".join((f"FROM {base}", *lines, ""))


def removed(client, *names: str) -> None:
    for name in names:
        client.remove_image(name, force=True)


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """A task whose tests need a file that the build makes."""
    run = "RUN mkdir made && echo 7 > made/limit.txt"
    text = recipe(base, f"LABEL sao-gym.test=1{WORKER}", "WORKDIR /srv/app", "COPY size size", run)
    return harbor(
        tmp_path_factory.mktemp("harbor") / "made",
        **{"environment/Dockerfile": text, TESTS: MADE},
    )


@pytest.fixture(scope="module")
def task(folder, docker, client):
    made = imported(folder, docker)
    yield made
    removed(client, made.image)


def test_a_dockerfile_is_built_once_and_judged(task, folder, docker, client, monkeypatch) -> None:
    assert task.root == "/srv/app"
    assert task.tree == {
        "made/limit.txt": file("7\n"),
        "size/__init__.py": file(""),
        "size/core.py": file(FAULTY),
    }
    assert task.fail_to_pass == (f"{TESTS}::test_larger",)
    assert task.pass_to_pass == (f"{TESTS}::test_equal",)
    judged(task, docker)
    assert client.inspect_image(task.image)["Config"]["Labels"][images.BUILT] == "1"
    monkeypatch.setattr(type(client), "build", None)
    again = imported(folder, docker)
    assert (again.image, again.tree) == (task.image, task.tree)


def test_another_content_is_another_image(folder, docker, client, task, tmp_path) -> None:
    text = (folder / "environment/Dockerfile").read_text()
    other = harbor(
        tmp_path, **{"environment/Dockerfile": text, TESTS: MADE, "environment/note.txt": "b\n"}
    )
    name = images.build(other / "environment", seconds=60.0)
    try:
        assert name != task.image
    finally:
        removed(client, name)


def test_an_agent_mends_it_in_its_image(task, tmp_path) -> None:
    save_task(task, tmp_path)
    assert load_tasks(tmp_path)[0] == task
    env = RepoFix(form="full", sandbox="docker", tasks=str(tmp_path))
    try:
        env.reset(seed=0)
        asked = "import os\n\n\ndef test_it():\n    assert os.getcwd() == '/srv/app'"
        env.step(f"edit test_it.py 1 {asked}")
        assert env.step("run")[0] == "1 passed, 0 failed\n"
        env.step("edit size/core.py 2     return a if a > b else b")
        assert env.step("submit")[1:3] == (1.0, True)
        env.reset(seed=0)
        assert env.step("submit")[1:3] == (0.0, True)
    finally:
        env.close()
        shared_bench("docker").close()


def named(folder, image: str, **changes: str | None):
    """A task with an image that is there already, and no Dockerfile."""
    settings = f'[environment]\ndocker_image = "{image}"\n'
    return harbor(folder, **{"task.toml": settings, "environment/Dockerfile": None, **changes})


def test_an_image_that_is_named_is_used(task, docker, tmp_path) -> None:
    found = imported(named(tmp_path, task.image, **{TESTS: MADE}), docker)
    assert (found.image, found.root, found.tree) == (task.image, "/srv/app", task.tree)
    judged(found, docker)


def test_an_image_that_is_not_to_be_had_is_named(docker, tmp_path) -> None:
    # an address of this machine at which nobody listens: no registry is asked
    why = refused(named(tmp_path, "127.0.0.1:9/none:1"), docker)
    assert why.startswith("no image '127.0.0.1:9/none:1' here, and no pull: ")
    assert "Bad Name" in refused(named(tmp_path, "Bad Name"), docker)


def test_an_image_that_works_in_the_root_is_refused(base, docker, tmp_path) -> None:
    why = refused(named(tmp_path, base), docker)
    assert why == f"image {base}: its working directory is /; name a folder (WORKDIR)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("RUN (echo said; echo oops) >&2; exit 3",), ("code: 3", "(oops)")),
        (("RUN true " + "x" * 300 + "; exit 3",), ("...", "code: 3")),
        (("BUILD it",), ("unknown instruction: BUILD",)),
        (("COPY --chown=0 none /x",), ("none: file does not exist",)),
    ],
)
def test_a_build_that_fails_is_told_in_the_builders_last_words(
    base, docker, tmp_path, lines, why
) -> None:
    text = recipe(base, *lines)
    said = refused(harbor(tmp_path, **{"environment/Dockerfile": text}), docker)
    assert said.startswith("Dockerfile: the build failed: ")
    assert all(part in said for part in why), said
    assert len(said) < 450


def test_a_step_that_says_nothing_for_too_long_is_an_end(base, docker, tmp_path) -> None:
    text = recipe(base, "RUN sleep 20")
    settings = "[environment]\nbuild_timeout_sec = 1.0\n"
    folder = harbor(tmp_path, **{"environment/Dockerfile": text, "task.toml": settings})
    assert refused(folder, docker).startswith("the Docker engine: ")


@pytest.mark.parametrize("kind", ["process", "bubblewrap"])
def test_without_docker_images_are_refused(kind: str, tmp_path) -> None:
    text = "FROM python:3.12\nWORKDIR /app\nRUN make\n"
    with contextlib.closing(opened(kind)) as sandbox:
        why = refused(harbor(tmp_path / "a", **{"environment/Dockerfile": text}), sandbox)
        assert why.startswith("Dockerfile: 'RUN make' needs a build, hence Docker")
        why = refused(named(tmp_path / "b", "x:1"), sandbox)
        assert why == f"docker_image 'x:1' needs Docker; this is {kind}"


def test_no_build_where_copies_suffice(docker, tmp_path, monkeypatch) -> None:
    def build(*_: object, **__: object) -> str:
        raise MachineryError("image", "built")

    monkeypatch.setattr(images, "build", build)
    task = imported(harbor(tmp_path), docker)
    assert (task.image, task.root) == ("base", None)
    assert task.gold == patch(size__core=RIGHT)
