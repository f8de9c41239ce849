"""Arithmetic on small numbers."""

from random import Random

from lessons.conversation import Conversation, assistant, user

LARGEST_NUMBER = 12
"""Of the operands of sums and differences."""
LARGEST_FACTOR = 9

_ADDITION = (
    "What is {} + {}?",
    "What is {} plus {}?",
    "{} + {} =",
    "{} + {} = ?",
    "Add {} and {}.",
    "How much is {} plus {}?",
    "How much is {} + {}?",
    "Calculate {} + {}.",
)
_SUBTRACTION = (
    "What is {} - {}?",
    "What is {} minus {}?",
    "{} - {} =",
    "{} - {} = ?",
    "How much is {} minus {}?",
    "How much is {} - {}?",
    "Calculate {} - {}.",
)
_MULTIPLICATION = (
    "What is {} x {}?",
    "What is {} times {}?",
    "{} x {} =",
    "{} x {} = ?",
    "How much is {} times {}?",
    "Multiply {} and {}.",
    "Calculate {} x {}.",
)


def sum_or_difference(rng: Random) -> Conversation:
    """Addition, or subtraction that stays at or above zero."""
    one, other = rng.randint(0, LARGEST_NUMBER), rng.randint(0, LARGEST_NUMBER)
    if rng.random() < 0.5:
        return _exercise("sums", rng.choice(_ADDITION).format(one, other), one + other)
    one, other = max(one, other), min(one, other)
    return _exercise("sums", rng.choice(_SUBTRACTION).format(one, other), one - other)


def product(rng: Random) -> Conversation:
    """The multiplication tables."""
    one, other = rng.randint(0, LARGEST_FACTOR), rng.randint(0, LARGEST_FACTOR)
    return _exercise("products", rng.choice(_MULTIPLICATION).format(one, other), one * other)


def _exercise(kind: str, question: str, answer: int | str) -> Conversation:
    return Conversation(kind, (user(question), assistant(str(answer))))
