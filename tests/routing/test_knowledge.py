"""What is known of replicas, and for how long."""

import pytest

from fairlead.routing.knowledge import Knowledge
from fairlead.routing.kv_index import SeqGap
from fairlead.routing.load import Load
from fairlead_protocol.blocks import hash_blocks
from fairlead_protocol.messages import LOAD_STALE_SECONDS
from fairlead_testing.routing import make_load

PROMPT = hash_blocks(range(4), 1)


def load(time: float) -> Load:
    return make_load(time=time)


def test_a_load_is_known_until_it_is_stale() -> None:
    knowledge = Knowledge()
    knowledge.loaded("a", load(10.0))
    assert knowledge.load("a", 10.0) == load(10.0)
    assert knowledge.load("a", 9.9 + LOAD_STALE_SECONDS) is not None
    assert knowledge.load("a", 10.0 + LOAD_STALE_SECONDS) is None
    assert knowledge.load("b", 10.0) is None


def test_silence_is_told_from_never_having_spoken() -> None:
    knowledge = Knowledge()
    assert not knowledge.fell_silent("a", 0.0)
    knowledge.loaded("a", load(0.0))
    assert not knowledge.fell_silent("a", 1.0)
    assert knowledge.fell_silent("a", 5.0)
    knowledge.loaded("a", load(5.0))
    assert not knowledge.fell_silent("a", 5.0)
    knowledge.lost("a")
    assert knowledge.fell_silent("a", 5.0)
    knowledge.forget("a")
    assert not knowledge.fell_silent("a", 5.0)


def test_a_replica_that_drains_does_so_until_it_says_otherwise_though_its_stream_ends() -> None:
    knowledge = Knowledge()
    knowledge.loaded("a", make_load(draining=True))
    knowledge.lost("a")
    assert knowledge.drains("a")
    knowledge.loaded("a", load(1.0))
    assert not knowledge.drains("a"), "it has restarted"
    knowledge.loaded("a", make_load(draining=True))
    knowledge.forget("a")
    assert not knowledge.drains("a")


def test_a_prefill_that_ends_after_its_replica_has_left_leaves_nothing_behind() -> None:
    knowledge = Knowledge()
    knowledge.listed("a", 0, [])
    expectation = knowledge.index.expect("a", PROMPT)
    knowledge.forget("a")
    knowledge.computed(expectation)
    assert not knowledge._computed
    knowledge.index.check()


def test_a_lost_stream_makes_blocks_and_load_unknown_and_a_listing_makes_blocks_known() -> None:
    knowledge = Knowledge()
    knowledge.listed("a", 3, PROMPT)
    knowledge.loaded("a", load(0.0))
    knowledge.lost("a")
    assert knowledge.load("a", 0.0) is None
    assert knowledge.index.match(PROMPT) == {}
    with pytest.raises(SeqGap):
        knowledge.changed("a", 4, [], [])
    knowledge.listed("a", 1, PROMPT[:2])
    knowledge.changed("a", 2, PROMPT[2:3], [])
    assert knowledge.index.match(PROMPT) == {"a": 3}


@pytest.mark.parametrize("line", ["listed", "changed", "loaded", "lost"])
def test_blocks_of_a_finished_prefill_stay_expected_until_the_replicas_next_line(line: str) -> None:
    knowledge = Knowledge()
    knowledge.listed("a", 0, [])
    knowledge.listed("b", 0, [])
    knowledge.computed(knowledge.index.expect("a", PROMPT))
    knowledge.changed("b", 1, [], [])
    assert knowledge.index.match(PROMPT) == {"a": 4}, "another replica's line says nothing of it"
    arguments = {"listed": (0, []), "changed": (1, PROMPT[:1], []), "loaded": (load(0.0),), "lost": ()}
    getattr(knowledge, line)("a", *arguments[line])
    assert knowledge.index.match(PROMPT) == ({"a": 1} if line == "changed" else {})
    knowledge.index.check()
