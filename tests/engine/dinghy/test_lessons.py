"""The lessons: the same for everybody, and never the same in training and in the examination."""

import json
import re
from collections import Counter
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.conversation import Conversation, Split, assistant, split_of, user
from lessons.facts import fact
from lessons.logs import LONGEST_LOG, harbour_log
from lessons.phrasings import RELATIONS
from lessons.sums import LARGEST_NUMBER, sum_or_difference
from lessons.syllabus import KINDS, SYLLABUS, draw, draw_all


def stream(split: Split, seed: int, count: int) -> list[Conversation]:
    return list(islice(draw_all(split, seed), count))


def asked(conversation: Conversation) -> list[str]:
    """Every question of a conversation with what was asked before it."""
    questions = [message["content"] for message in conversation.messages if message["role"] == "user"]
    return [json.dumps(questions[: turn + 1]) for turn in range(len(questions))]


@given(seed=st.integers(0, 2**31), index=st.integers(0, 10**6), split=st.sampled_from(Split))
@settings(deadline=None, max_examples=50)
def test_a_conversation_follows_from_split_seed_and_index_alone(seed, index, split):
    assert draw(split, seed, index) == draw(split, seed, index)


def test_a_stream_begins_with_conversation_0_and_skips_none():
    assert stream(Split.TRAIN, 7, 5) == [draw(Split.TRAIN, 7, index) for index in range(5)]


def test_seeds_give_different_streams():
    assert stream(Split.TRAIN, 1, 5) != stream(Split.TRAIN, 2, 5)


@pytest.mark.compute
def test_no_held_out_question_is_ever_trained_on():
    trained = {text for seed in (1, 2) for drawn in stream(Split.TRAIN, seed, 10_000) for text in asked(drawn)}
    held_out = {asked(drawn)[-1] for drawn in stream(Split.HELD_OUT, 0, 1500)}
    assert not trained & held_out


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_every_phrasing_has_a_place_for_its_subject(relation):
    assert all(phrasing.count("{}") == 1 for phrasing in relation.phrasings)
    assert len(set(relation.phrasings)) == len(relation.phrasings)


@given(text=st.text(min_size=1), answer=st.text())
@settings(deadline=None, max_examples=50)
def test_the_split_follows_from_the_question_alone(text, answer):
    one, other = (Conversation("facts", (user(text), assistant(each))) for each in (answer, "another"))
    assert split_of(one) is split_of(other)


def test_a_turn_after_a_held_out_question_is_held_out_too():
    first = next(c for c in (fact(Random(seed)) for seed in range(1000)) if split_of(c) is Split.HELD_OUT)
    longer = Conversation("follow-ups", (*first.messages, user("And of Spain?"), assistant("Madrid")))
    assert split_of(longer) is Split.HELD_OUT


def test_about_a_tenth_of_the_questions_is_held_out():
    drawn = [split_of(sum_or_difference(Random(seed))) for seed in range(2000)]
    assert 0.07 < drawn.count(Split.HELD_OUT) / len(drawn) < 0.13


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_sums_and_differences_are_right_and_in_range(seed):
    conversation = sum_or_difference(Random(seed))
    question = conversation.question[0]["content"]
    one, other = (int(number) for number in re.findall(r"\d+", question))
    adds = any(sign in question for sign in ("+", "plus", "Add"))
    assert int(conversation.answer) == (one + other if adds else one - other)
    assert 0 <= int(conversation.answer) <= 2 * LARGEST_NUMBER


@given(seed=st.integers(0, 10**6), num_ships=st.integers(1, LONGEST_LOG))
@settings(deadline=None, max_examples=30)
def test_a_log_names_each_ship_once(seed, num_ships):
    text = harbour_log(Random(seed), num_ships)["content"]
    entries = re.findall(r"^(\w+): \w+, berth \d+, captain \w+$", text, re.MULTILINE)
    assert len(set(entries)) == num_ships


def test_the_syllabus_teaches_every_kind_that_is_reported():
    kinds = Counter(conversation.kind for conversation in stream(Split.HELD_OUT, 0, 1000))
    assert set(kinds) == set(KINDS)
    assert all(share.weight > 0 for share in SYLLABUS)


def test_questions_are_kept_without_their_answer():
    conversation = draw(Split.TRAIN, 0, 0)
    record = conversation.to_json()
    assert record["answer"] == conversation.answer
    assert record["messages"] == list(conversation.messages[:-1])
