"""Who is new and left alone for a moment, by the clock that is passed in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.gateway.dispatch.replica_watch import WARM_UP_SECONDS, WarmUps
from fairlead.routing.replica import Replica


def replica(uid: str, digest: str = "") -> Replica:
    return Replica(uid, uid, "127.0.0.1", 8000, digest=digest)


def look(book: WarmUps, *replicas: Replica, now: float = 0.0, told: str = "") -> list[str]:
    return [each.uid for each in book.warm(replicas, now, lambda uid: uid in told)]


def test_a_stranger_is_introduced_by_its_load_and_not_by_its_name_alone() -> None:
    book = WarmUps()
    assert look(book, replica("a")) == []
    assert book.awaits("a")
    assert look(book, replica("a", digest="told now")) == []
    assert look(book, replica("a", digest="told now"), told="a") == ["a"]
    assert not book.awaits("a")
    assert look(book, replica("a")) == ["a"], "a stream that is lost later makes nobody a stranger"


def test_whoever_says_what_it_is_at_once_is_no_stranger() -> None:
    book = WarmUps()
    assert look(book, replica("a", digest="known")) == ["a"]
    assert book.next_due(0.0) is None


def test_a_silent_stranger_is_used_all_the_same_when_its_time_is_over() -> None:
    book = WarmUps()
    look(book, replica("a"), now=10.0)
    assert book.next_due(10.0) == 10.0 + WARM_UP_SECONDS
    assert look(book, replica("a"), now=10.0 + WARM_UP_SECONDS) == ["a"]
    assert book.next_due(10.0 + WARM_UP_SECONDS) is None


def test_one_that_left_and_came_back_is_new_again() -> None:
    book = WarmUps()
    look(book, replica("a"), now=0.0)
    look(book, now=5.0)
    assert look(book, replica("a"), now=6.0) == []
    assert book.next_due(6.0) == 6.0 + WARM_UP_SECONDS


@settings(deadline=None)
@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc")), st.floats(0, 3))))
def test_nobody_who_stays_is_left_alone_for_longer_than_the_time(steps: list[tuple[set[str], set[str], float]]) -> None:
    book, now, since = WarmUps(), 0.0, dict[str, float]()
    for present, told, seconds in steps:
        now += seconds
        since = {uid: since.get(uid, now) for uid in present}
        used = look(book, *map(replica, sorted(present)), now=now, told="".join(told))
        assert told & present <= set(used) <= present
        assert {uid for uid in present if now >= since[uid] + WARM_UP_SECONDS} <= set(used)
        due = book.next_due(now)
        assert (due is not None) == (set(used) != present)
