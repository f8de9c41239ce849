"""The KV index against a naive model, and how its cost grows."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fairlead.routing.kv_index import SWEEP_SLICE, Expectation, KVIndex, SeqGap
from fairlead_common.wire.blocks import BlockHash, hash_blocks, state_hash

UIDS = [f"replica-{number}" for number in range(12)]
PROMPTS = [
    hash_blocks([*range(first), *range(100, 100 + second)], 1) for first in (0, 2, 5, 9) for second in (0, 1, 4, 7)
]
"""Prompts of which many begin alike."""
BLOCKS = sorted({block for prompt in PROMPTS for block in prompt})
BLOCKS += map(state_hash, list(BLOCKS))

uids = st.sampled_from(UIDS)
some_blocks = st.sets(st.sampled_from(BLOCKS))
prompts = st.sampled_from(PROMPTS)


def naive_match(held: dict[str, set[BlockHash]], hashes: Sequence[BlockHash]) -> dict[str, int]:
    matched = {}
    for uid, blocks in held.items():
        num = 0
        while num < len(hashes) and hashes[num] in blocks:
            num += 1
        if num:
            matched[uid] = num
    return matched


class IndexMachine(RuleBasedStateMachine):
    """Listings, changes, losses and prompts under way, of a dozen replicas, beside sets per replica."""

    under_way = Bundle("under_way")
    sweep_slice = SWEEP_SLICE

    def __init__(self) -> None:
        super().__init__()
        self.index = KVIndex(sweep_slice=self.sweep_slice)
        self.held: dict[str, set[BlockHash]] = {}
        self.seqs: dict[str, int] = {}
        self.expected: dict[str, Counter[BlockHash]] = {uid: Counter() for uid in UIDS}
        self.open: set[Expectation] = set()

    @rule(uid=uids, seq=st.integers(0, 1000), blocks=some_blocks)
    def replace(self, uid: str, seq: int, blocks: set[BlockHash]) -> None:
        self.index.replace(uid, seq, blocks)
        self.held[uid], self.seqs[uid] = set(blocks), seq

    @rule(uid=uids, stored=some_blocks, removed=some_blocks, ahead=st.sampled_from([1, 1, 1, 1, 0, 2, -1]))
    def apply(self, uid: str, stored: set[BlockHash], removed: set[BlockHash], ahead: int) -> None:
        seq = self.seqs.get(uid, 0) + ahead
        if uid not in self.seqs or ahead != 1:
            with pytest.raises(SeqGap):
                self.index.apply(uid, seq, stored, removed)
            return
        self.index.apply(uid, seq, stored, removed)
        self.held[uid] = (self.held[uid] - removed) | stored
        self.seqs[uid] = seq

    @rule(uid=uids)
    def remove(self, uid: str) -> None:
        self.index.remove(uid)
        self.held.pop(uid, None)
        self.seqs.pop(uid, None)
        self.expected[uid].clear()
        self.open = {each for each in self.open if each.uid != uid}

    @rule(target=under_way, uid=uids, prompt=prompts, start=st.integers(0, 3))
    def expect(self, uid: str, prompt: list[BlockHash], start: int) -> Expectation:
        expectation = self.index.expect(uid, [*prompt[start:], *map(state_hash, prompt[-1:])])
        self.expected[uid].update(expectation.hashes)
        self.open.add(expectation)
        return expectation

    @rule(expectation=consumes(under_way), times=st.integers(1, 2))
    def settle(self, expectation: Expectation, times: int) -> None:
        for _ in range(times):
            self.index.settle(expectation)
        if expectation in self.open:
            self.open.remove(expectation)
            self.expected[expectation.uid] -= Counter(expectation.hashes)

    @rule(prompt=prompts)
    def prompts_match(self, prompt: list[BlockHash]) -> None:
        both = {uid: self.held.get(uid, set()) | set(self.expected[uid]) for uid in UIDS}
        matched = self.index.match(prompt)
        assert matched == naive_match(both, prompt)
        states = {
            uid: max((at for at in range(1, num + 1) if state_hash(prompt[at - 1]) in both[uid]), default=0)
            for uid, num in matched.items()
        }
        assert self.index.match_states(prompt, matched) == {uid: num for uid, num in states.items() if num}
        held = naive_match(self.held, prompt)
        assert {uid: num for uid in UIDS if (num := self.index.num_held(uid, prompt))} == held

    @rule(uid=uids, block=st.sampled_from(BLOCKS))
    def knows_what_is_being_computed(self, uid: str, block: BlockHash) -> None:
        computing = {each for each in self.open if each.uid == uid and block in each.hashes}
        assert set(self.index.computing(uid, block)) == (set() if block in self.held.get(uid, ()) else computing)

    @invariant()
    def blocks_are_exact(self) -> None:
        self.index.check()
        assert {uid: self.index.hashes(uid) for uid in UIDS} == {uid: self.held.get(uid, set()) for uid in UIDS}
        assert {uid: self.index.seq(uid) for uid in UIDS} == {uid: self.seqs.get(uid) for uid in UIDS}


class SlowSweepMachine(IndexMachine):
    """The same while what replicas left behind is swept one block at a time."""

    sweep_slice = 1


TestIndex = IndexMachine.TestCase
TestSlowSweep = SlowSweepMachine.TestCase
TestIndex.settings = TestSlowSweep.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


class CountingDict(dict):
    """Counts look-ups: the cost of a walk, on any machine."""

    num_lookups = 0

    def get(self, key, default=None):
        self.num_lookups += 1
        return super().get(key, default)


@pytest.mark.parametrize("num_replicas", [1, 8, 64])
@pytest.mark.parametrize("num_matched", [0, 10, 1000])
def test_a_match_looks_once_at_each_matched_block_however_many_replicas_hold_them(num_replicas, num_matched) -> None:
    index = KVIndex()
    index._blocks = CountingDict()
    prompt = hash_blocks(range(2000), 1)
    for number in range(num_replicas):
        index.replace(f"r{number}", 0, prompt[:num_matched])
    index._blocks.num_lookups = 0
    assert index.match(prompt) == ({f"r{number}": num_matched for number in range(num_replicas)} if num_matched else {})
    assert index._blocks.num_lookups == num_matched + 1


def test_each_replica_gets_its_own_longest_prefix_in_one_walk() -> None:
    index, prompt = KVIndex(), hash_blocks(range(100), 1)
    for number in range(50):
        index.replace(f"r{number}", 0, prompt[: 2 * number])
    assert index.match(prompt) == {f"r{number}": 2 * number for number in range(1, 50)}
    assert index.match([]) == {}


def test_a_child_that_outlived_its_parent_does_not_count() -> None:
    index, prompt = KVIndex(), hash_blocks(range(5), 1)
    index.replace("a", 0, prompt)
    index.apply("a", 1, [], [prompt[2]])
    assert index.match(prompt) == {"a": 2}
    index.apply("a", 2, [prompt[2]], [])
    assert index.match(prompt) == {"a": 5}


def test_a_block_that_is_removed_and_stored_in_one_change_is_there() -> None:
    index, (block,) = KVIndex(), hash_blocks([1], 1)
    index.replace("a", 5, [block])
    index.apply("a", 6, stored=[block], removed=[block])
    assert index.hashes("a") == {block}


def test_two_prompts_under_way_with_the_same_beginning_are_both_settled_before_it_is_gone() -> None:
    index, prompt = KVIndex(), hash_blocks(range(4), 1)
    first, second = index.expect("a", prompt[:3]), index.expect("a", prompt)
    assert index.match(prompt) == {"a": 4}
    index.settle(second)
    assert index.match(prompt) == {"a": 3}
    index.settle(first)
    assert index.match(prompt) == {}
    index.check()


def test_a_new_listing_keeps_what_is_under_way() -> None:
    index, prompt = KVIndex(), hash_blocks(range(4), 1)
    index.replace("a", 0, prompt[:1])
    under_way = index.expect("a", prompt[1:3])
    index.replace("a", 7, prompt[:2])
    assert index.match(prompt) == {"a": 3}
    index.settle(under_way)
    assert index.match(prompt) == {"a": 2}


def test_slots_of_replicas_that_left_are_swept_and_used_again() -> None:
    index, prompt = KVIndex(), hash_blocks(range(5000), 1)
    index.replace("stays", 0, prompt[:10])
    for generation in range(20):
        index.replace("comes-and-goes", 0, prompt)
        for seq in range(1, 4):
            index.apply("comes-and-goes", seq, [], [])
        index.remove("comes-and-goes")
        for seq in range(3):
            index.apply("stays", 3 * generation + seq + 1, [], [])
    index.check()
    assert len(index) == 10, "blocks that nobody holds any more are gone"
    assert len(index._uids) <= 3, "slots are used again"


def test_an_index_without_replicas_is_empty() -> None:
    index = KVIndex()
    index.replace("a", 0, hash_blocks(range(100), 1))
    index.remove("a")
    index.remove("a")
    assert len(index) == 0
    index.check()


@pytest.mark.parametrize("attribute", ["_in_use", "_expected", "_expected_again", "_blocks", "_retired", "_seqs"])
def test_check_finds_what_does_not_fit(attribute: str) -> None:
    index, (block,) = KVIndex(), hash_blocks([1], 1)
    index.replace("a", 0, [block])
    index.expect("a", [block])
    index.check()
    wrong = {"_in_use": 3, "_retired": 1, "_seqs": {"b": 1}, "_expected_again": {("a", block): 1}}
    setattr(index, attribute, wrong.get(attribute, {block: 2}))
    with pytest.raises(AssertionError):
        index.check()


def test_what_replicas_leave_behind_never_takes_more_room_than_twice_what_they_hold() -> None:
    index, numbers = KVIndex(sweep_slice=1), iter(range(10**9))

    def new_blocks(number: int) -> list[BlockHash]:
        return [next(numbers).to_bytes(16) for _ in range(number)]

    index.replace("honest", 0, new_blocks(100))
    for _ in range(50):
        index.replace("hostile", 0, new_blocks(100))
        for seq in range(1, 10):
            index.apply("hostile", seq, new_blocks(100), [])
        assert index.num_blocks("hostile") == 1000
        assert len(index) <= 2 * (100 + 1000) + 100
    index.check()
