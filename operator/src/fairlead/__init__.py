"""Fairlead's control plane: operator, gateway, local mode and the commands for people."""

__version__ = "0.1.0"
