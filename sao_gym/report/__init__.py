"""Figures, tables and the self-contained HTML report of a finished run."""

from __future__ import annotations

from sao_gym.report.build import ReportPaths, write_report
from sao_gym.report.compare import compare

__all__ = ["ReportPaths", "compare", "write_report"]
