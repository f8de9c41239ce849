"""Bodies: what is taken apart, what stays the client's bytes, what is rewritten for the engine."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.gateway.openai.errors import OpenAIError
from fairlead.gateway.openai.parse import InferenceRequest, parse, request_id_from

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(document: object) -> InferenceRequest:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse("/v1/completions", body, [], request_id="r")


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text().filter(lambda name: not name.startswith("fairlead_")), values, max_size=6), st.text())
def test_the_engine_gets_every_field_as_it_was_and_its_own_name_for_the_model(fields, served_name) -> None:
    document = {key: value for key, value in fields.items() if key not in ("stream", "model")} | {"model": "alias"}
    assert json.loads(read(document).upstream_body(served_name)) == {**document, "model": served_name}


@settings(deadline=None, max_examples=80)
@given(
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | values.map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_either_a_request_or_an_error_of_the_clients(body: bytes) -> None:
    try:
        request = read(body)
    except OpenAIError as error:
        assert error.status == 400
    else:
        assert json.loads(request.upstream_body("m"))["model"] == "m"


def test_numbers_keep_the_clients_spelling() -> None:
    body = read(b'{"model":"m","temperature":0.10,"seed":123456789012345678901234567890,"x":1e400}').upstream_body("m")
    assert body == b'{"model":"m","temperature":0.10,"seed":123456789012345678901234567890,"x":1e400}'


def test_of_a_repeated_field_gateway_and_engine_see_the_same_one() -> None:
    request = read(b'{"model":"a","model":"b","stream":false,"stream":true}')
    assert (request.model, request.stream) == ("b", True)
    assert request.upstream_body("s").count(b'"model"') == 1


@pytest.mark.parametrize(
    ("document", "stream", "wants_usage"),
    [
        ({}, False, False),
        ({"stream": True}, True, False),
        ({"stream": "yes"}, False, False),
        ({"stream": 1}, False, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, True, False),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, True, True),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": [1]}, True, False),
    ],
)
def test_stream_and_usage_are_what_json_says_they_are(document, stream, wants_usage) -> None:
    request = read({"model": "m", **document})
    assert (request.stream, request.wants_usage) == (stream, wants_usage)


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, [1]], ids=["usage in every chunk", "no options"])
def test_options_of_a_stream_that_ask_for_usage_or_are_none_reach_the_engine_unchanged(options) -> None:
    document = {"model": "m", "stream": True, "stream_options": options}
    assert json.loads(read(document).upstream_body("m")) == document


@pytest.mark.parametrize(
    ("header", "expected"),
    [(b"abc-1.2:3", "abc-1.2:3"), (None, None), (b"", None), (b"a b", None), (b"x" * 129, None), (b"\xff", None)],
)
def test_request_ids_of_clients_are_kept_if_they_are_harmless(header, expected) -> None:
    assert request_id_from(header) == expected


@pytest.mark.parametrize(
    ("field", "priority"), [(b"-3", -3), (b"7", 7), (b"null", 0), (b'"x"', 0), (b"0.5", 0), (b"99999999999", 0)]
)
def test_a_priority_that_an_engine_would_refuse_counts_for_nothing(field: bytes, priority: int) -> None:
    assert read(b'{"model": "m", "priority": %s}' % field).priority == priority
