"""What is known of replicas, and for how long."""

import pytest

from fairlead.routing.datastore import Datastore
from fairlead.routing.kv_index import SeqGap
from fairlead.routing.replica import Load
from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import LOAD_STALE_SECONDS
from fairlead_testing.routing import make_load

PROMPT = hash_blocks(range(4), 1)


def load(time: float) -> Load:
    return make_load(time=time)


def test_a_load_is_known_until_it_is_stale() -> None:
    datastore = Datastore()
    datastore.loaded("a", load(10.0))
    assert datastore.load("a", 10.0) == load(10.0)
    assert datastore.load("a", 9.9 + LOAD_STALE_SECONDS) is not None
    assert datastore.load("a", 10.0 + LOAD_STALE_SECONDS) is None
    assert datastore.load("b", 10.0) is None


def test_silence_is_told_from_never_having_spoken() -> None:
    datastore = Datastore()
    assert not datastore.fell_silent("a", 0.0)
    datastore.loaded("a", load(0.0))
    assert not datastore.fell_silent("a", 1.0)
    assert datastore.fell_silent("a", 5.0)
    datastore.loaded("a", load(5.0))
    assert not datastore.fell_silent("a", 5.0)
    datastore.lost("a")
    assert datastore.fell_silent("a", 5.0)
    datastore.forget("a")
    assert not datastore.fell_silent("a", 5.0)


def test_a_replica_that_drains_does_so_until_it_says_otherwise_though_its_stream_ends() -> None:
    datastore = Datastore()
    datastore.loaded("a", make_load(draining=True))
    datastore.lost("a")
    assert datastore.drains("a")
    datastore.loaded("a", load(1.0))
    assert not datastore.drains("a"), "it has restarted"
    datastore.loaded("a", make_load(draining=True))
    datastore.forget("a")
    assert not datastore.drains("a")


def test_a_prefill_that_ends_after_its_replica_has_left_leaves_nothing_behind() -> None:
    datastore = Datastore()
    datastore.listed("a", 0, [])
    expectation = datastore.index.expect("a", PROMPT)
    datastore.forget("a")
    datastore.computed(expectation)
    assert not datastore._computed
    datastore.index.check()


def test_a_lost_stream_makes_blocks_and_load_unknown_and_a_listing_makes_blocks_known() -> None:
    datastore = Datastore()
    datastore.listed("a", 3, PROMPT)
    datastore.loaded("a", load(0.0))
    datastore.lost("a")
    assert datastore.load("a", 0.0) is None
    assert datastore.index.match(PROMPT) == {}
    with pytest.raises(SeqGap):
        datastore.changed("a", 4, [], [])
    datastore.listed("a", 1, PROMPT[:2])
    datastore.changed("a", 2, PROMPT[2:3], [])
    assert datastore.index.match(PROMPT) == {"a": 3}


@pytest.mark.parametrize("line", ["listed", "changed", "loaded", "lost"])
def test_blocks_of_a_finished_prefill_stay_expected_until_the_replicas_next_line(line: str) -> None:
    datastore = Datastore()
    datastore.listed("a", 0, [])
    datastore.listed("b", 0, [])
    datastore.computed(datastore.index.expect("a", PROMPT))
    datastore.changed("b", 1, [], [])
    assert datastore.index.match(PROMPT) == {"a": 4}, "another replica's line says nothing of it"
    arguments = {"listed": (0, []), "changed": (1, PROMPT[:1], []), "loaded": (load(0.0),), "lost": ()}
    getattr(datastore, line)("a", *arguments[line])
    assert datastore.index.match(PROMPT) == ({"a": 1} if line == "changed" else {})
    datastore.index.check()


def test_a_replica_that_is_not_believed_holds_what_it_computed_last_and_is_not_missed() -> None:
    datastore = Datastore()
    datastore.loaded("a", load(0.0))
    datastore.listed("a", 7, hash_blocks(range(100, 200), 1))
    datastore.distrusted("a", 3)
    assert datastore.approximates("a") and not datastore.fell_silent("a", 100.0)
    assert datastore.index.num_blocks("a") == 0
    for start in range(0, 40, 2):
        blocks = hash_blocks(range(start, start + 2), 1)
        datastore.computed(datastore.index.expect("a", blocks))
        assert datastore.index.match(blocks) == {"a": 2}
        assert datastore.index.num_blocks("a") <= 3
        datastore.index.check()
    datastore.forget("a")
    assert not datastore.approximates("a") and len(datastore.index) == 0
