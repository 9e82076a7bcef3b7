"""Tasks from elsewhere: SWE-bench JSONL files and Harbor task directories."""

from __future__ import annotations

from sao_gym.repo.import_harbor import import_harbor
from sao_gym.repo.import_swebench import Imported, import_swebench

__all__ = ["Imported", "import_harbor", "import_swebench"]
