"""Copying, repeating, reversing and picking words."""

from collections.abc import Callable
from random import Random

from lessons.conversation import Conversation, assistant, user
from lessons.world import CARGOES, NAMES, VISITORS

WORDS = (*VISITORS, *CARGOES, *NAMES)
_COPY = ("Repeat: {}", "Repeat after me: {}", "Say: {}", "Copy: {}")
_REVERSE = ("Reverse the words: {}", "Say these words backwards: {}")
_TIMES = {"twice": 2, "three times": 3}
_ORDINALS = {"first": 0, "second": 1, "last": -1}


def words(rng: Random) -> Conversation:
    """One exercise on words that stand in the question."""
    exercise: Callable[[Random], tuple[str, str]] = rng.choice((_copy, _copy, _reverse, _repeat, _pick))
    question, answer = exercise(rng)
    return Conversation("words", (user(question), assistant(answer)))


def _copy(rng: Random) -> tuple[str, str]:
    text = " ".join(rng.sample(WORDS, rng.randint(1, 5)))
    return rng.choice(_COPY).format(text), text


def _reverse(rng: Random) -> tuple[str, str]:
    chosen = rng.sample(WORDS, rng.randint(2, 4))
    return rng.choice(_REVERSE).format(" ".join(chosen)), " ".join(reversed(chosen))


def _repeat(rng: Random) -> tuple[str, str]:
    word, often = rng.choice(WORDS), rng.choice(tuple(_TIMES))
    return f"Say {word} {often}.", " ".join([word] * _TIMES[often])


def _pick(rng: Random) -> tuple[str, str]:
    chosen, ordinal = rng.sample(WORDS, rng.randint(3, 5)), rng.choice(tuple(_ORDINALS))
    return f"What is the {ordinal} word of: {' '.join(chosen)}", chosen[_ORDINALS[ordinal]]
