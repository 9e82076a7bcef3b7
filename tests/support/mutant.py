"""Runs named tests against another copy of the library, in a process of its own.

Nothing of `sao_gym` may be imported before `run_tests`: the process is forked from one that holds
third-party modules only (`PRELOADED`), which saves each copy the seconds that those take.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

PRELOADED = (
    "anyio.pytest_plugin",
    "gymnasium",
    "hypothesis.strategies",
    "numpy",
    "orjson",
    "pydantic",
    "pytest",
    "scipy.stats",
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gemma2.modeling_gemma2",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "yaml",
)


class Outcomes:
    """A pytest plug-in that notes how the body of each test ended."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.of[report.nodeid] = report.outcome


def run_tests(root: Path, tree: Path, tests: list[str], answer: Path) -> None:
    """Run `tests` of the checkout `root` with the `sao_gym` in `tree`.

    Writes to `answer` (JSON) pytest's exit code, each test's outcome and where the modules of the
    library came from; what pytest prints goes to the same place with the suffix `.txt`.
    """
    output = os.open(answer.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    assert "sao_gym" not in sys.modules
    sys.path.insert(0, str(tree))
    os.chdir(root)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(tree / ".hypothesis")
    sys.dont_write_bytecode = True
    outcomes = Outcomes()
    # what was imported before cannot have its assertions rewritten
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*quiet, *tests], plugins=[outcomes])
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "sao_gym"]
    files = [str(module.__file__) for module in ours]
    answer.write_text(json.dumps({"code": int(code), "outcomes": outcomes.of, "files": files}))
