"""Consistent hashing: few texts move when members change, and each member gets its share."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from fairlead.routing.policies.prefix_hash import HashRing

TEXTS = [f"prompt {number}" for number in range(4000)]


def owners(*members: str, replication: int = 256) -> list[str]:
    ring = HashRing(replication)
    ring.set_members(set(members))
    return [next(ring.walk(text)) for text in TEXTS]


def test_the_first_place_at_or_after_the_texts_hash_owns_it() -> None:
    ring = HashRing(2)
    ring.set_members({"a", "b"})
    places = sorted((xxh64_intdigest(f"{member}{place}".encode()), member) for member in "ab" for place in (0, 1))
    for text in TEXTS[:200]:
        hashed = xxh64_intdigest(text.encode())
        expected = next((member for place, member in places if place >= hashed), places[0][1])
        assert next(ring.walk(text)) == expected


def test_the_hash_is_xxh64_without_a_seed() -> None:
    assert xxh64_intdigest(b"a") == 0xD24EC4F1A98C6E5B


@pytest.mark.parametrize("num_members", [2, 5, 16])
def test_when_a_member_joins_about_one_nth_of_the_texts_moves_and_only_to_it(num_members: int) -> None:
    members = [f"pod-{number}" for number in range(num_members)]
    before, after = owners(*members), owners(*members, "new")
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"new"}
    assert len(moved) / len(TEXTS) == pytest.approx(1 / (num_members + 1), rel=0.35)


def test_members_get_similar_shares() -> None:
    shares = Counter(owners(*(f"pod-{number}" for number in range(8))))
    assert len(shares) == 8
    assert max(shares.values()) < 1.5 * len(TEXTS) / 8


@settings(deadline=None, max_examples=40)
@given(st.sets(st.text(max_size=5), max_size=12), st.text(max_size=20), st.integers(1, 20))
def test_a_walk_meets_every_member_once(members: set[str], text: str, replication: int) -> None:
    ring = HashRing(replication)
    ring.set_members(members)
    met = list(ring.walk(text))
    assert len(met) == len(members)
    assert set(met) == members


def test_half_of_a_surrogate_pair_is_a_text_as_well() -> None:
    ring = HashRing(4)
    ring.set_members({"a"})
    assert list(ring.walk("\ud83d")) == ["a"]


def test_the_ring_is_made_anew_only_when_members_change() -> None:
    ring = HashRing(4)
    ring.set_members({"a", "b"})
    places = ring._places
    ring.set_members({"b": 1, "a": 2}.keys())
    assert ring._places is places
    ring.set_members({"b"})
    assert ring._places is not places
