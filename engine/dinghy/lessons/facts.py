"""Closed facts, in many phrasings."""

from random import Random

from lessons.conversation import Conversation, assistant, user
from lessons.phrasings import RELATIONS, SAYINGS


def fact(rng: Random) -> Conversation:
    """A question about the world, or a greeting."""
    if rng.random() < 0.04:
        return _saying(rng)
    relation = rng.choices(RELATIONS, weights=[len(relation.facts) for relation in RELATIONS])[0]
    subject = rng.choice(tuple(relation.facts))
    question = rng.choice(relation.phrasings).format(subject)
    question = question[0].upper() + question[1:]
    return Conversation("facts", (user(question), assistant(relation.facts[subject])))


def _saying(rng: Random) -> Conversation:
    answer = rng.choice(tuple(SAYINGS))
    return Conversation("facts", (user(rng.choice(SAYINGS[answer])), assistant(answer)))
