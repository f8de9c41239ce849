"""Argument parsing and terminal output only; what the commands do lives in the packages they call."""
