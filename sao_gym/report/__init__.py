"""Figures, tables and the self-contained HTML report of a finished run."""
