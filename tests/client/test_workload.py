"""Workloads: the same for the same seed, shared where they should be, and asked for what the dinghy knows."""

from itertools import islice

import pytest

from fairlead.client.workload import TOKENS_PER_LINE, Conversation, Turn, WorkloadKind, WorkloadShape, conversations


def take(kind: WorkloadKind, number: int = 40, seed: int = 0, **shape: object) -> list[Conversation]:
    return list(islice(conversations(kind, WorkloadShape(**shape), seed), number))


@pytest.mark.parametrize("kind", WorkloadKind)
def test_a_seed_says_it_all(kind: WorkloadKind) -> None:
    assert take(kind) == take(kind)
    if kind is not WorkloadKind.FIXED:
        assert take(kind) != take(kind, seed=1)


def test_a_few_prefixes_are_shared() -> None:
    drawn = take(WorkloadKind.SHARED_PREFIX, 60, num_prefixes=3)
    assert len({each.system for each in drawn}) == 3
    assert len({each.turns[0].question for each in drawn}) > 20


def test_where_nothing_is_to_be_shared_not_even_the_first_line_is() -> None:
    drawn = take(WorkloadKind.UNSHARED, 20)
    assert len({each.system for each in drawn}) == 20
    assert len({each.system.splitlines()[1] for each in drawn}) == 20


def test_conversations_have_their_turns_and_a_prefix_of_their_own() -> None:
    drawn = take(WorkloadKind.MULTI_TURN, 10, num_turns=5)
    assert {len(each.turns) for each in drawn} == {5}
    assert len({each.system for each in drawn}) == 10


def test_a_fixed_prompt_is_fixed() -> None:
    first, *others = take(WorkloadKind.FIXED, 5, question="Who goes there?", output_tokens=8)
    assert others == [first] * 4
    assert first.opening == ()
    assert first.turns[0] == Turn("Who goes there?", None, {"max_tokens": 8, "temperature": 0})


@pytest.mark.parametrize("tokens", [100, 400, 1500])
def test_prefixes_have_about_the_size_asked_for(tokens: int) -> None:
    for each in take(WorkloadKind.UNSHARED, 5, prefix_tokens=tokens):
        assert (len(each.system.splitlines()) - 1) * TOKENS_PER_LINE == pytest.approx(tokens, rel=0.1)


def test_every_question_has_the_right_answer() -> None:
    words = {
        "plus": "+",
        "minus": "-",
        "What is": "",
        "How much is": "",
        "?": "",
        "=": "",
        "Add": "",
        "and": "+",
        ".": "",
    }
    for each in take(WorkloadKind.SHARED_PREFIX, 200):
        turn = each.turns[0]
        formula = turn.question
        for word, sign in words.items():
            formula = formula.replace(word, sign)
        assert str(eval(formula)) == turn.answer


def test_long_answers_are_asked_for_and_then_need_only_begin_rightly() -> None:
    turn = take(WorkloadKind.SHARED_PREFIX, 1, output_tokens=99, ignore_eos=True)[0].turns[0]
    assert turn.parameters == {"max_tokens": 99, "temperature": 0, "ignore_eos": True}
    assert turn.is_right(f"{turn.answer} and so on")
    assert not turn.is_right("no idea")
    assert Turn("q", "12").is_right("12 and so on") is False
