"""Several turns: the last question can only be answered with what was said before."""

from collections.abc import Callable
from random import Random

from lessons.conversation import Conversation, Message, assistant, user
from lessons.world import CAPITALS, COLOURS, LEGS, NAMES, OPPOSITES, SOUNDS, YOUNG

_CHAINS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("What is the capital of {}?", CAPITALS, "And of {}?"),
    ("What is the opposite of {}?", dict(OPPOSITES), "And of {}?"),
    ("What colour is {}?", COLOURS, "And {}?"),
    ("What is a young {} called?", YOUNG, "And a young {}?"),
    ("What does a {} say?", SOUNDS, "And a {}?"),
    ("How many legs does a {} have?", LEGS, "And a {}?"),
)


def follow_up(rng: Random) -> Conversation:
    """One exercise of two turns."""
    exercise: Callable[[Random], tuple[Message, ...]] = rng.choice((_chain, _name))
    return Conversation("follow-ups", exercise(rng))


def _chain(rng: Random) -> tuple[Message, ...]:
    """The same question about something else."""
    first, facts, then = rng.choice(_CHAINS)
    one, other = rng.sample(tuple(facts), 2)
    return (
        user(first.format(one)),
        assistant(facts[one]),
        user(then.format(other)),
        assistant(facts[other]),
    )


def _name(rng: Random) -> tuple[Message, ...]:
    """Remembers a name."""
    name = rng.choice(NAMES)
    introduction = rng.choice(("My name is {}.", "I am {}.", "Call me {}.")).format(name)
    question = user(rng.choice(("What is my name?", "Who am I?", "Do you remember my name?")))
    return user(introduction), assistant(f"Ahoy, {name}!"), question, assistant(name)
