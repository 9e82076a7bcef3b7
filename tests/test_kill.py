"""Kill -9 at a sample of points; the whole sweep is `benchmarks/kill.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "kill.py"


def test_killed_anywhere_a_run_goes_on_bit_for_bit():
    done = subprocess.run(
        [sys.executable, PROGRAM, "--points", "12", "--updates", "40", "--beside", "7"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical 12/12" in done.stdout
