"""The stream filter: the same result however the bytes are cut, usage kept and hidden exactly where it should be."""

import json
import re
import tracemalloc
from itertools import dropwhile, pairwise
from operator import not_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.gateway.openai.sse import MAX_EVENT_BYTES, Usage, UsageFilter, usage_of
from fairlead_common.http.client_connection import AnswerTooLarge

texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(['"usage"', '"usage":null', "data: [DONE]", "\n\n", '{"error"', ',"usage": null']),
)


@st.composite
def streams(draw) -> tuple[bytes, bytes, dict | None]:
    """(with usage, without usage, the usage): a stream as an engine sends it, and as a client who did not ask sees
    it."""
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    space = draw(st.booleans())
    full, bare = b"", b""

    def dump(document: dict) -> bytes:
        return json.dumps(document, separators=None if space else (",", ":")).encode()

    for text in draw(st.lists(texts, max_size=6)):
        if draw(st.booleans()):
            comment = b": ping" + newline * 2
            full, bare = full + comment, bare + comment
        chunk = {"choices": [{"delta": {"content": text}}]}
        event = b"data: " + dump(chunk) + newline * 2
        null = b"data: " + dump({**chunk, "usage": None}) + newline * 2
        full += draw(st.sampled_from([event, null]))
        bare += event
    usage = draw(
        st.none()
        | st.fixed_dictionaries({"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 99)})
    )
    if usage is not None:
        full += b"data: " + dump({"choices": [], "usage": usage}) + newline * 2
    end = b"data: [DONE]" + newline * 2
    return full + end, bare + end, usage


def feed(events: UsageFilter, data: bytes, cuts: list[int] | None) -> bytes:
    """In pieces; None: event by event."""
    if cuts is None:
        cuts = [end.end() for end in re.finditer(rb"(\r?\n){2}", data)]
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return b"".join(events.feed(data[start:end]) for start, end in pairwise(places))


@settings(deadline=None, max_examples=80)
@given(streams(), st.none() | st.lists(st.integers(0, 600), max_size=30))
def test_usage_disappears_and_nothing_else_changes_however_the_stream_is_cut(stream, cuts) -> None:
    full, bare, usage = stream
    events = UsageFilter(hide_usage=True)
    assert feed(events, full, cuts) == bare
    assert events.done and not events.failed
    assert (events.usage is None) == (usage is None)
    if usage is not None:
        assert events.usage.prompt_tokens == usage["prompt_tokens"]
    texts = [json.loads(line[6:])["choices"][0]["delta"]["content"] for line in bare.splitlines() if b"{" in line]
    assert events.num_tokens == len(list(dropwhile(not_, texts)))


@settings(deadline=None, max_examples=50)
@given(streams(), st.none() | st.lists(st.integers(0, 600), max_size=30))
def test_a_client_that_asked_gets_every_byte(stream, cuts) -> None:
    full, _, usage = stream
    events = UsageFilter(hide_usage=False)
    assert feed(events, full, cuts) == full
    assert (events.usage is None) == (usage is None)


def test_whole_events_pass_at_once_and_the_rest_waits_for_its_end() -> None:
    events = UsageFilter(hide_usage=True)
    assert events.feed(b'data: {"choices":[{"text":"a"}]}\n\ndata: {"cho') == b'data: {"choices":[{"text":"a"}]}\n\n'
    assert events.feed(b'ices":[]}\n') == b""
    assert events.feed(b"\n") == b'data: {"choices":[]}\n\n'


def test_usage_in_a_chunk_with_choices_is_taken_out_of_it() -> None:
    events = UsageFilter(hide_usage=True)
    passed = events.feed(
        b'data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":1,"completion_tokens":2},"x":1.50}\n\n'
    )
    assert passed == b'data: {"choices":[{"text":"a"}],"x":1.50}\n\n'
    assert events.usage.completion_tokens == 2


def test_cached_tokens_are_read_where_there_are_any() -> None:
    assert usage_of(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}').cached_tokens == 8
    assert usage_of(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}').cached_tokens == 0
    assert usage_of(b'{"choices":[]}') is None
    assert usage_of(b"not json") is None


@pytest.mark.parametrize("count", [-1, 2**60])
def test_what_is_no_number_of_tokens_is_no_usage(count: int) -> None:
    assert usage_of(b'{"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % count) is None


@pytest.mark.parametrize(
    ("event", "is_token"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"role": "assistant"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{}}]}\n\n', False),
        (b": ping\n\n", False),
        (b'data: {"choices":[{"delta":{"content":"H"}}]}\n\n', True),
        (b'data: {"choices":[{"text":"H"}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"tool_calls":[{}]}}]}\n\n', True),
    ],
)
def test_the_opening_of_a_chat_is_not_its_first_token(event: bytes, is_token: bool) -> None:
    events = UsageFilter(hide_usage=True)
    events.feed(event)
    assert events.token_seen == is_token


@pytest.mark.parametrize("mark", [b'"delta":{}', b'"choices":[]'])
def test_events_without_a_token_are_not_counted(mark: bytes) -> None:
    events = UsageFilter(hide_usage=True)
    events.feed(b'data: {"choices":[{"text":"H"}]}\n\ndata: {' + mark + b"}\n\n")
    assert events.num_tokens == 1
    events.feed(b"data: {" + 9 * mark + b"}\n\n")
    assert events.num_tokens == 1, "whatever an engine writes, what is counted does not go down"


@pytest.mark.parametrize(
    ("more", "is_clients"),
    [(b"", False), (b', "type": "invalid_request_error"', True), (b', "code": 400', True), (b', "code": 500', False)],
)
def test_an_error_event_passes_and_tells_whether_the_request_is_to_blame(more: bytes, is_clients: bool) -> None:
    events = UsageFilter(hide_usage=True)
    event = b'data: {"error": {"message": "out of memory"%b}}\n\n' % more
    assert events.feed(event) == event
    assert (events.failed, events.done, events.blames_client) == (True, False, is_clients)
    assert events.feed(b"data: [DONE]\n\n") == b"" and not events.done, "nothing behind it makes it whole"


def test_an_event_without_end_is_refused_and_not_kept() -> None:
    events = UsageFilter(hide_usage=True)
    with pytest.raises(AnswerTooLarge):
        for _ in range(MAX_EVENT_BYTES // 1_000_000 + 2):
            events.feed(b"x" * 1_000_000)


def test_an_event_that_comes_in_small_pieces_is_not_copied_with_each() -> None:
    events, copied = UsageFilter(hide_usage=True), 0
    events.feed(b"data: " + b"x" * 2**20)
    events.feed(b"y")  # which makes room for more
    tracemalloc.start()
    try:
        for _ in range(100):
            assert events.feed(b"y") == b""
            copied = max(copied, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert copied < 2**20
    assert events.feed(b"\n\ndata: [DONE]\n\n").endswith(b"y\n\ndata: [DONE]\n\n") and events.done


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": [%b{}], "usage": {"prompt_tokens": 3}}' % (b"{}," * 2_000_000),
        b'{"data": [%b{}], "usage": {"prompt_tokens": 3}, "more": {"a": 1}}' % (b"{}," * 2_000_000),
        b'{"choices": [%b{}], "usage": {"prompt_tokens": 3}}' % (b"{}," * 1_000_000),
    ],
    ids=["usage last", "more behind it", "choices without number"],
)
def test_of_a_large_answer_only_the_usage_is_kept(body: bytes) -> None:
    tracemalloc.start()
    try:
        assert usage_of(body) == Usage(prompt_tokens=3)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert usage_of(body.replace(b"usage", b"other")) is None
