"""Kubernetes' protobuf: what is read of it, and that nothing is guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_local.apiserver.protobuf import MAGIC, NotRead, decode


def field(number: int, value: bytes | int) -> bytes:
    """As a client writes it; short ones only."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def entry(name: bytes, value: bytes) -> bytes:
    return field(1, name) + field(2, value)


def message(kind: bytes, raw: bytes, api_version: bytes = b"v1") -> bytes:
    outer = field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, b"") + field(4, b"")
    return MAGIC + outer


METADATA = field(1, b"hub") + field(2, b"") + field(7, 0) + field(8, b"") + field(11, entry(b"team", b"a"))
EVERYTHING = {
    b"Secret": (
        field(2, entry(b"a", b"\xff")) + field(2, entry(b"b", b"")) + field(3, b"Opaque") + field(5, 1),
        {"data": {"a": "/w==", "b": ""}, "type": "Opaque", "immutable": True},
    ),
    b"ConfigMap": (
        field(2, entry(b"a", "é".encode())) + field(3, entry(b"b", b"\0")),
        {"data": {"a": "é"}, "binaryData": {"b": "AA=="}},
    ),
    b"Namespace": (field(2, field(1, b"kubernetes")), {"spec": {"finalizers": ["kubernetes"]}}),
    b"ServiceAccount": (
        field(3, field(1, b"r")) + field(3, field(1, b"s")) + field(4, 0),
        {"imagePullSecrets": [{"name": "r"}, {"name": "s"}], "automountServiceAccountToken": False},
    ),
}


@pytest.mark.parametrize("kind", EVERYTHING)
def test_what_kubectl_creates_is_read(kind: bytes) -> None:
    raw, wanted = EVERYTHING[kind]
    metadata = {"name": "hub", "labels": {"team": "a"}}
    assert decode(message(kind, field(1, METADATA) + raw)) == {
        "apiVersion": "v1", "kind": kind.decode(), "metadata": metadata, **wanted,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{}", "it does not begin as a message"),
        (MAGIC, "an object without a kind is not among them"),
        (message(b"Deployment", b"", b"apps/v1"), "Deployment is not among them"),
        (message(b"Secret", field(9, 1)), "the field number 9, which is not read"),
        (message(b"Secret", field(1, METADATA))[:-9], "ends in the middle"),
        (message(b"Secret", field(1, field(1, b"\xff"))), "not UTF-8"),
        (message(b"Secret", field(1, field(1, 5))), "a number where there should be text"),
        (message(b"Secret", field(1, field(8, b"\x08\x01"))), "a time, which the server says"),
        (message(b"Secret", b"\x0b"), "of a type that there is not"),
        (MAGIC + b"\xff" * 20, "in the middle of a number"),
    ],
)
def test_what_is_not_read_is_told(body: bytes, sentence: str) -> None:
    with pytest.raises(NotRead, match=sentence):
        decode(body)


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(raw: bytes) -> None:
    for body in (MAGIC + raw, message(b"Secret", raw), message(b"ServiceAccount", raw)):
        try:
            decode(body)
        except NotRead:
            pass
