"""Tasks on disk, one folder each; reading gives back exactly what was written.

task.json    names, tests, limits, and a digest of each tree
tree/  tests/  gold/   files as they are; gold holds what the fix writes
admission.json         what `tasks check` found, if it ran
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sao_gym.errors import InputError
from sao_gym.repo.admission import Admission
from sao_gym.repo.record import patch_from_json, patch_to_json
from sao_gym.repo.task import RepoTask
from sao_gym.tree import Patch, Tree, digest, read_folder, write_folder

FORMAT = "sao-gym/task"
VERSION = 1
TASK, ADMISSION = "task.json", "admission.json"


def save_task(task: RepoTask, directory: Path | str) -> Path:
    """Write a task below `directory`, over an earlier one of the same id; its folder.

    Raises:
        InputError: `extra` holds what JSON cannot, or a path cannot be written.
    """
    folder = Path(directory) / quote(task.id, safe=" +=@,")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    trees = {"tree": task.tree, "tests": task.tests, "gold": task.gold.written if task.gold else {}}
    try:
        for name, tree in trees.items():
            (part / name).mkdir()
            write_folder(tree, part / name)
        text = json.dumps(_head(task, trees), indent=1)
    except (ValueError, TypeError, OSError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"task {task.id} cannot be written: {error}") from None
    (part / TASK).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
    return folder


def load_task(folder: Path | str) -> RepoTask:
    """Raises InputError if `folder` holds no task, or not the one that was written."""
    folder = Path(folder)
    head = _read(folder / TASK)
    if head.get("format") != FORMAT or head.get("version") != VERSION:
        raise InputError(f"{folder / TASK}: not a task of this version of sao-gym")
    trees = {name: _tree(folder / name) for name in ("tree", "tests", "gold")}
    for name, tree in trees.items():
        if digest(tree) != head["sha256"].get(name):
            raise InputError(
                f"{folder / name}: changed since the task was written; import it again"
            )
    gold = None
    if head["gold"] is not None:
        gold = Patch(trees["gold"], patch_from_json({"written": {}, **head["gold"]}).removed)
    return RepoTask(
        id=head["id"],
        instruction=head["instruction"],
        tree=trees["tree"],
        tests=trees["tests"],
        fail_to_pass=tuple(head["fail_to_pass"]),
        pass_to_pass=tuple(head["pass_to_pass"]),
        gold=gold,
        runner=head["runner"],
        image=head["image"],
        root=head.get("root"),
        setup=head.get("setup", ""),
        seconds=head["seconds"],
        extra=head["extra"],
    )


def load_tasks(directory: Path | str) -> list[RepoTask]:
    """The tasks below a directory, or the one that lies in it, by id.

    Raises:
        InputError: there is none, or one is damaged.
    """
    directory = Path(directory)
    if (directory / TASK).is_file():
        return [load_task(directory)]
    tasks = [load_task(folder) for folder in task_folders(directory)]
    if not tasks:
        raise InputError(f"{directory}: no tasks here; make some with `tasks import`")
    return sorted(tasks, key=lambda task: task.id)


def task_folders(directory: Path | str) -> list[Path]:
    """Folders of tasks directly below a directory."""
    return sorted(p.parent for p in Path(directory).glob(f"*/{TASK}") if p.parent.name[:1] != ".")


def save_admission(found: Admission, folder: Path | str) -> None:
    """Keep what the check of a task found beside it."""
    fields = {
        "task": found.task,
        "admitted": found.admitted,
        "why": found.why,
        "gold": list(found.gold),
        "empty": list(found.empty),
        "flake_rate": found.flake_rate,
    }
    text = json.dumps(fields, indent=1) + "\n"
    (Path(folder) / ADMISSION).write_text(text, encoding="utf-8")


def load_admission(folder: Path | str) -> Admission | None:
    """What the last check of a task found; None if there was none."""
    path = Path(folder) / ADMISSION
    if not path.is_file():
        return None
    kept = _read(path)
    return Admission(
        task=kept["task"],
        admitted=kept["admitted"],
        why=kept["why"],
        gold=tuple(kept["gold"]),
        empty=tuple(kept["empty"]),
    )


def _head(task: RepoTask, trees: dict[str, Tree]) -> dict[str, Any]:
    gold = None
    if task.gold is not None:
        gold = {"removed": patch_to_json(Patch({}, task.gold.removed))["removed"]}
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": task.id,
        "instruction": task.instruction,
        "fail_to_pass": list(task.fail_to_pass),
        "pass_to_pass": list(task.pass_to_pass),
        "runner": task.runner,
        "image": task.image,
        "root": task.root,
        "setup": task.setup,
        "seconds": task.seconds,
        "gold": gold,
        "sha256": {name: digest(tree) for name, tree in trees.items()},
        "extra": dict(task.extra),
    }


def _tree(folder: Path) -> dict[str, Any]:
    return dict(read_folder(folder)) if folder.is_dir() else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: not an object")
    return value
