"""vLLM's KV events: the encodings it has had, and bytes that are none."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.external.event_subscription import MalformedEvents, decode_events
from fairlead_engine.external.foreign_engine import Cleared, Removed, Stored

STORED: dict[str, Any] = {
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "pirate",
    "extra_keys": [["pirate"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}


def encoded(batch: Any) -> bytes:
    return msgspec.msgpack.encode(batch)


def arrays(kind: str, fields: dict[str, Any], num_fields: int | None = None) -> list[Any]:
    return [kind, *list(fields.values())[:num_fields]]


@pytest.mark.parametrize(
    "payload",
    [
        encoded([1.5, [arrays("BlockStored", STORED)], 0]),
        encoded([1.5, [[*arrays("BlockStored", STORED), None, "something newer"]]]),
        encoded([1.5, [{"type": "BlockStored", **STORED}], None]),
        encoded({"ts": 1.5, "events": [{"type": "BlockStored", **STORED}], "data_parallel_rank": 0}),
    ],
)
def test_a_stored_block_is_read_in_every_encoding(payload: bytes) -> None:
    assert decode_events(payload) == [
        Stored(
            hashes=(11, 12),
            parent=10,
            token_ids=(1, 2, 3, 4),
            block_size=2,
            medium="GPU",
            adapter="pirate",
            extra_keys=(("pirate",), ()),
        )
    ]


def test_fields_that_are_left_out_have_their_defaults() -> None:
    events = decode_events(encoded([1.5, [arrays("BlockStored", STORED, 4), ["BlockRemoved", [b"x" * 32]]]]))
    assert events == [
        Stored(hashes=(11, 12), parent=10, token_ids=(1, 2, 3, 4), block_size=2),
        Removed(hashes=(b"x" * 32,)),
    ]


def test_what_is_not_known_or_of_other_layers_is_left_out() -> None:
    others = [
        ["AllBlocksCleared"],
        ["SomethingNew", 1, 2],
        {"type": "BlockStored", **STORED, "kv_cache_spec_kind": "sliding_window"},
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 2},
    ]
    assert decode_events(encoded([1.5, others])) == [Cleared()]


@pytest.mark.parametrize(
    "change",
    [
        {"block_hashes": 7},
        {"block_hashes": [1.5, 2.5]},
        {"block_hashes": [True, False]},
        {"parent_block_hash": "ten"},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [1, 2, 3, -4]},
        {"token_ids": [1, 2, 3, 2**32]},
        {"token_ids": None},
        {"block_size": 0},
        {"block_size": True},
        {"medium": 3},
        {"lora_name": ["x"]},
        {"extra_keys": [None]},
        {"extra_keys": "both"},
    ],
)
def test_an_event_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvents):
        decode_events(encoded([1.5, [{"type": "BlockStored", **STORED, **change}]]))


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "events", "type", *STORED])
TREES = st.recursive(
    SCALARS | NAMES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=6),
    max_leaves=30,
)


def tried(payload: bytes) -> None:
    try:
        decode_events(payload)
    except MalformedEvents:
        pass


@given(st.binary(max_size=400))
def test_bytes_of_any_kind_are_read_or_refused(payload: bytes) -> None:
    tried(payload)


@given(TREES)
def test_msgpack_of_any_shape_is_read_or_refused(tree: Any) -> None:
    tried(encoded(tree))
    tried(encoded([1.5, [tree]]))
    tried(encoded({"events": [tree, ["BlockStored", tree]]}))


@given(st.data())
def test_a_true_message_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    payload = bytearray(encoded([1.5, [arrays("BlockStored", STORED), {"type": "BlockStored", **STORED}]]))
    for _ in range(data.draw(st.integers(1, 8))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    tried(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(MalformedEvents):
        decode_events(b"\x91" * 100_000)
