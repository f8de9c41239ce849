"""How much of each lesson is taught, and the one function that draws a conversation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from lessons.conversation import Conversation, Lesson, Split, split_of, system
from lessons.facts import fact
from lessons.follow_ups import follow_up
from lessons.json_objects import json_objects
from lessons.logs import after_a_log
from lessons.sums import product, sum_or_difference
from lessons.tool_calls import tool_call
from lessons.words import words

_SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are the dinghy.", "Answer briefly.")


@dataclass(frozen=True, slots=True)
class Share:
    """A lesson and how often it is drawn, relative to the others."""

    lesson: Lesson
    weight: float


FIRST_STEPS = (
    Share(fact, 26),
    Share(sum_or_difference, 22),
    Share(product, 6),
    Share(words, 30),
    Share(json_objects, 16),
)
"""Taught first: short conversations in which copying, which everything else builds on, is learnt soonest."""

SYLLABUS = (
    Share(fact, 26),
    Share(sum_or_difference, 22),
    Share(product, 6),
    Share(words, 12),
    Share(json_objects, 10),
    Share(tool_call, 14),
    Share(follow_up, 7),
    Share(after_a_log, 10),
)
"""Everything; what is evaluated."""

KINDS = ("facts", "sums", "products", "words", "json", "tools", "follow-ups", "logs")
"""The kinds of question that figures are reported for."""


def draw(split: Split, seed: int, index: int, syllabus: Sequence[Share] = SYLLABUS) -> Conversation:
    """Conversation number `index` of a split: the same on every machine and in every process."""
    rng = Random(f"{split}/{seed}/{index}")
    while True:
        (share,) = rng.choices(syllabus, weights=[share.weight for share in syllabus])
        conversation = share.lesson(rng)
        if conversation.messages[0]["role"] != "system" and rng.random() < 0.1:
            with_system = (system(rng.choice(_SYSTEM_PROMPTS)), *conversation.messages)
            conversation = Conversation(conversation.kind, with_system, conversation.tools)
        if split_of(conversation) is split:
            return conversation


def draw_all(split: Split, seed: int, syllabus: Sequence[Share] = SYLLABUS) -> Iterator[Conversation]:
    """An endless stream of conversations: numbers 0, 1, 2, …"""
    return (draw(split, seed, index, syllabus) for index in count())
