"""Fairlead's control plane: operator, gateway and the commands for people."""

__version__ = "0.1.0"
