"""The parts of an answer, as they come."""

from collections.abc import Generator
from typing import TypeVar

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    """More of the text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thought before it."""

    text: str


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    """Another call of a function."""

    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the last call's arguments, as the model writes them: JSON if it does well."""

    text: str


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """The last call is whole."""


class CallCut(msgspec.Struct, frozen=True, gc=False):
    """The answer ends in what would have become a call, before all of its name was there."""


Part = Content | Reasoning | CallBegun | CallArguments | CallEnded | CallCut
Result = TypeVar("Result")
Reading = Generator[Part | None, None, Result]
"""Reads an answer while it is made: yields its parts, and None for more of its text."""
