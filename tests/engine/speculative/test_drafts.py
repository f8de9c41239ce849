"""What is guessed, how much, and which guesses stand."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.speculative.drafting import DraftLength, verified
from fairlead_engine.speculative.ngram import NGramProposer
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import NO_TOKEN, SampledToken, Sequence


def sequence(token_ids: list[int]) -> Sequence:
    return Sequence("s", token_ids, 1, SamplingParams())


def test_what_followed_the_longest_run_last_is_proposed() -> None:
    proposer = NGramProposer(2, 3)
    assert proposer.propose(sequence([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]), 2) == [4, 9], "three tokens before two"
    assert proposer.propose(sequence([7, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]), 2) == [5, 1], "the later one of equals"
    assert proposer.propose(sequence([1, 2, 3, 4, 5, 9, 3]), 2) == [], "one token is too few"
    assert proposer.propose(sequence([5, 6, 5, 6]), 5) == [5, 6, 5, 6, 5], "what repeats goes on"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 5), max_size=8), st.integers(1, 6))
def test_an_index_that_grows_finds_what_one_of_the_whole_finds(start, growths, most) -> None:
    growing, proposer = sequence(list(start)), NGramProposer(1, 3)
    for growth in growths:
        growing.token_ids += [(growth * place) % 4 for place in range(growth)]
        assert proposer.propose(growing, most) == NGramProposer(1, 3).propose(sequence([*growing.token_ids]), most)
    proposer.forget([growing])
    assert not proposer._indices


def test_a_long_prompt_is_looked_through_in_several_steps() -> None:
    proposer, long = NGramProposer(2, 2), sequence([1, 2, *range(100, 10_000), 1, 2])
    found = [proposer.propose(long, 1) for _ in range(3)]
    assert found == [[], [], [100]]


@given(st.integers(1, 16), st.lists(st.integers(0, 16), max_size=200))
def test_the_number_of_drafts_stays_within_bounds_and_falls_to_nothing(most: int, stood: list[int]) -> None:
    length = DraftLength(most)
    for number in stood:
        wanted = length.next()
        assert 0 <= wanted <= most
        if wanted:
            length.observe(wanted, min(number, wanted))
    drafts = 0
    for _ in range(1000):
        if wanted := length.next():
            drafts += wanted
            length.observe(wanted, 0)
    assert drafts <= 2 * most + 5 + 1000 // 64 + 1, "what is never right is hardly tried"


def test_drafts_that_stand_again_are_as_many_as_before() -> None:
    length = DraftLength(8)
    while length.next():
        length.observe(1, 0)
    grown = []
    for _ in range(12):
        if wanted := length.next():
            length.observe(wanted, wanted)
            grown.append(wanted)
    assert grown[:4] == [1, 2, 4, 8]


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_drafts_stand_as_far_as_they_are_what_was_chosen(drafts: list[int], data: st.DataObject) -> None:
    size = len(drafts) + 1
    ids = data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size))
    chosen = [NO_TOKEN if token_id < 0 else SampledToken(token_id) for token_id in ids]
    found = [token.token_id for token in verified(drafts, chosen)]
    assert found == ids[: len(found)]
    assert found[:-1] == drafts[: len(found) - 1], "all before the last are drafts"
    assert found == [-1] or -1 not in found
    if len(found) < size and ids[0] >= 0:
        assert found[-1] != drafts[len(found) - 1] or ids[len(found)] == -1, "no more of them stand"
