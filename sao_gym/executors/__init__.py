"""Kinds of time: simulated and real."""
