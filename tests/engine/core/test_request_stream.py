"""The stream between core and consumer: merging for the slow, errors after outputs."""

from unittest.mock import Mock

import pytest

from fairlead_engine.core.request_stream import RequestStream, merged
from fairlead_engine.errors import EngineDead
from fairlead_engine.types import FinishReason, SequenceOutput, TokenLogprobs


def output(token_id: int, **fields: object) -> SequenceOutput:
    return SequenceOutput(request_id="a", new_token_ids=[token_id], num_cached_tokens=4, **fields)  # type: ignore[arg-type]


def test_a_slow_consumer_gets_what_it_missed_as_one_output_and_is_told_once() -> None:
    on_ready = Mock()
    stream = RequestStream(on_ready)
    stream.put(output(1, first_scheduled_time=9.0))
    stream.put(output(2))
    stream.put(output(3, finish_reason=FinishReason.STOP, stop_token_id=3))
    on_ready.assert_called_once_with()
    taken = stream.take()
    assert taken == SequenceOutput(
        request_id="a",
        new_token_ids=[1, 2, 3],
        finish_reason=FinishReason.STOP,
        num_cached_tokens=4,
        stop_token_id=3,
        first_scheduled_time=9.0,
    )


def test_a_fast_consumer_is_told_of_each_output_as_it_comes() -> None:
    on_ready = Mock()
    stream = RequestStream(on_ready)
    for token_id in (1, 2):
        assert not stream.is_ready
        stream.put(output(token_id))
        assert on_ready.call_count == token_id
        assert stream.is_ready
        assert stream.take().new_token_ids == [token_id]


def test_outputs_that_came_before_an_error_are_delivered_first() -> None:
    stream = RequestStream(Mock())
    stream.put(output(1))
    stream.fail(EngineDead("gone"))
    assert stream.take().new_token_ids == [1]
    for _ in range(2):
        assert stream.is_ready
        with pytest.raises(EngineDead, match="gone"):
            stream.take()


def test_merging_keeps_logprobs_aligned_with_tokens() -> None:
    first = output(1, logprobs=[TokenLogprobs(1, -0.5, [])])
    second = output(2, logprobs=[TokenLogprobs(2, -0.7, [])])
    logprobs = merged(first, second).logprobs
    assert logprobs is not None
    assert [entry.token_id for entry in logprobs] == [1, 2]
    assert merged(output(1), output(2)).logprobs is None
