"""sao-gym: agents that learn online while the world drifts. Importing it imports nothing heavy."""

__version__ = "0.1.0"
