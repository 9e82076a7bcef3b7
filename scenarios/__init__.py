"""Scenario files (YAML), found by name."""
