"""Tokenising, and bounds on the number of tokens of a text."""
