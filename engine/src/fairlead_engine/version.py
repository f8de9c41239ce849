"""The engine's version, alone, so that whoever tells it imports nothing else."""

__version__ = "0.1.0"
