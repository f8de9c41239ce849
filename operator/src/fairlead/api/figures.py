"""Figures as sentences on objects and in logs tell them."""

import math


def are(number: int) -> str:
    """`1 is`, `2 are`."""
    return f"{number} {'is' if number == 1 else 'are'}"


def counted(number: int, noun: str) -> str:
    """`1 replica`, `2 replicas`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounded(number: float, digits: int = 2) -> float:
    """To so many significant digits: 347 → 350, 0.0347 → 0.035."""
    return 0.0 if not number else round(number, digits - 1 - math.floor(math.log10(abs(number))))


def seconds_in_words(seconds: float) -> str:
    """Two significant digits and a unit, in the notation of durations in a spec: `35ms`, `3.2s`, `120s`."""
    milliseconds = rounded(seconds * 1000.0)
    return f"{milliseconds:g}ms" if milliseconds < 1000.0 else f"{milliseconds / 1000.0:g}s"


def per_second(rate: float) -> str:
    """`4.1 requests/s`."""
    return f"{rounded(rate):g} requests/s"
