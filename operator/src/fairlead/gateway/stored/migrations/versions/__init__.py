"""Versions, by number."""
