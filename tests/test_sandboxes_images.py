"""Images that lack what a box needs: one line, nothing left."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from repo_tasks import opened, size_task
from sandbox_kinds import owned_by

from sao_gym import boundary
from sao_gym.envs.repo_fix import RepoFix
from sao_gym.envs.repo_fix.bench import shared_bench
from sao_gym.errors import MachineryError
from sao_gym.repo.grade import EMPTY, grade
from sao_gym.repo.importers import import_swebench
from sao_gym.repo.store import save_task
from sao_gym.sandbox import BoxSpec
from sao_gym.sandboxes import base_image
from sao_gym.types import Concept, Failed, Task

OURS = f"sao-gym-test/lacks{os.environ.get('PYTEST_XDIST_WORKER', '')}"
"""One for each test process: whoever made it removes it."""
BARE, NO_GIT = f"{OURS}:all", f"{OURS}:git"


@pytest.fixture(scope="module")
def images():
    opened("docker").close()
    docker = pytest.importorskip("docker")
    client = docker.APIClient(version="auto")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    client.import_image_from_data(archive.getvalue(), repository=OURS, tag="all")
    recipe = f"FROM {base_image.ensure(client)}\nRUN rm /usr/bin/git && mkdir -p /testbed\n"
    said = list(client.build(fileobj=io.BytesIO(recipe.encode()), tag=NO_GIT, rm=True, decode=True))
    assert "errorDetail" not in said[-1], said[-1]
    yield
    for name in (BARE, NO_GIT):
        client.remove_image(name, force=True)
    client.close()


@pytest.fixture
def docker(images):
    made = opened("docker")
    yield made
    made.close()
    assert [one for one in owned_by(os.getpid()) if one.startswith("container")] == []


def test_an_image_without_python(docker, tmp_path) -> None:
    for tried in (
        lambda: docker.start(BoxSpec(image=BARE)),
        lambda: grade(size_task(image=BARE), EMPTY, sandbox=docker),
    ):
        with pytest.raises(MachineryError) as caught:
            tried()
        assert caught.value.kind == "image"
        assert str(caught.value) == (
            f"image {BARE!r} has no python3; boxes need Python 3.7 or newer"
        )
    save_task(size_task(image=BARE), tmp_path)
    env = RepoFix(form="bash", sandbox="docker", tasks=str(tmp_path))
    failed = boundary.reset(env, Task(index=0, seed=0), Concept(id="A", params={}))
    assert isinstance(failed, Failed)
    assert failed.kind == "image"
    shared_bench("docker").close()


def test_an_image_without_git(docker, tmp_path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        '{"instance_id": "x", "problem_statement": "x", "patch": "x", "test_patch": "x", '
        f'"FAIL_TO_PASS": ["t::t"], "PASS_TO_PASS": [], "image": "{NO_GIT}"}}\n'
    )
    (found,) = import_swebench(path, docker)
    assert (found.task, found.why) == (None, "the image has no git")
    save_task(size_task(image=NO_GIT), tmp_path)
    env = RepoFix(form="bash", sandbox="docker", tasks=str(tmp_path))
    env.reset(seed=0)
    assert env.step("git log")[0].endswith("[exit code 127]\n")
    env.step("sed -i 's/a < b/a > b/' size/core.py")
    assert env.step("submit")[1:3] == (1.0, True)
    shared_bench("docker").close()
