"""Answers that keep to a schema or a grammar, as clients ask for them: the official one, and vLLM's fields."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pydantic
import pytest

USER: Any = [{"role": "user", "content": "ahoy"}]
SCHEMA = {
    "type": "object",
    "properties": {"wind": {"enum": ["N", "S"]}, "force": {"type": "integer", "minimum": 0, "maximum": 12}},
    "required": ["wind", "force"],
    "additionalProperties": False,
}
TAG = {"begin": "<f=", "schema": SCHEMA, "end": ">"}


class Weather(pydantic.BaseModel):
    """What the official client makes a schema of by itself."""

    wind: Literal["N", "S"]
    force: int = pydantic.Field(ge=0, le=12)


def refused(response: Any) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "structural_tag", "structures": [TAG], "triggers": ["<f"]}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "whitespace_pattern": " ?"}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"regex": "a|b"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"grammar": 'start: "a"'}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "x", "structures": [TAG], "triggers": ["<"]})}},
        {"guided_json": SCHEMA},
        {"guided_regex": "a|b"},
        {"guided_choice": ["a", "b"]},
        {"guided_grammar": 'root ::= "a"'},
    ],
)
async def test_what_an_answer_keeps_to_reaches_the_engine(start_app: Any, fields: dict[str, Any]) -> None:
    app = start_app()
    for ask in (app.chat, app.complete):
        assert (await ask(**fields)).status_code == 200
    (name,) = fields
    chat, completion = (request.sampling.grammar for request in app.engine.requests)
    assert chat == completion
    assert chat.field.startswith(name)


async def test_a_schema_beside_the_type_is_kept_to_as_one_of_json_schema(start_app: Any) -> None:
    app = start_app()
    for wanted in (
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": None},
    ):
        assert (await app.chat(response_format=wanted)).status_code == 200
    first, *flat, any_object = (request.sampling.grammar.text for request in app.engine.requests)
    assert flat == [first, first] and any_object != first


@pytest.mark.parametrize(
    ("fields", "param", "advice"),
    [
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "json_object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}},
            "response_format.schema",
            "leave json_schema out",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {}}, "response_format.type", "missing"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema",
            "",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"sch": {}}}},
            "response_format.json_schema",
            "sch",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "triggers"),
        (
            {"response_format": {"type": "structural_tag", "structures": [TAG], "triggers": ["g"]}},
            "response_format",
            "no trigger is the beginning of '<f='",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "unknown"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "together"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "together"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_json": "[]"}, "guided_json", "JSON object"),
        ({"guided_json": {"type": "object", "not": {"required": ["a"]}}}, "guided_json", "'not' is not supported"),
        ({"guided_json": {"type": "object", "not": {}}}, "guided_json", "no JSON text can meet it"),
        ({"guided_json": {"const": 2**70}}, "guided_json", "64 bits"),
        ({"guided_json": '{"const": "\\ud800"}'}, "guided_json", "its texts are Unicode"),
        ({"guided_json": '{"minimum": NaN}'}, "guided_json", "minimum"),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{**TAG, "schema": {"const": -(2**64)}}],
                    "triggers": ["<f"],
                }
            },
            "response_format",
            "64 bits",
        ),
        ({"guided_regex": "a("}, "guided_regex", "unclosed group"),
        ({"guided_regex": ""}, "guided_regex", "empty"),
        ({"guided_choice": []}, "guided_choice", "1 to"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "empty"),
        ({"guided_grammar": "nonsense"}, "guided_grammar", "start"),
        ({"guided_grammar": 'start: "a" b'}, "guided_grammar", "unknown name"),
    ],
)
async def test_what_cannot_be_kept_to_is_refused_by_name(
    start_app: Any, fields: dict[str, Any], param: str, advice: str
) -> None:
    app = start_app()
    error = refused(await app.chat(**fields))
    assert error["param"].startswith(param)
    assert advice in error["message"]
    assert app.engine.requests == []


@pytest.fixture(scope="module")
def official(served: Any) -> openai.OpenAI:
    """The official client of a real engine with random weights."""
    return openai.OpenAI(api_key="none", base_url=served.url + "/v1", max_retries=0)


def test_the_official_client_gets_objects_of_its_own_classes(official: openai.OpenAI, served: Any) -> None:
    before = served.metric("fairlead_engine_constrained_tokens_total")
    reply = official.chat.completions.parse(
        model="tiny", messages=USER, response_format=Weather, seed=1, max_tokens=300
    )
    assert isinstance(reply.choices[0].message.parsed, Weather)
    assert reply.usage is not None
    assert served.metric("fairlead_engine_constrained_tokens_total") - before == reply.usage.completion_tokens
    assert served.metric("fairlead_engine_mask_seconds_total") > 0.0


def test_streams_and_several_answers_keep_to_it_beside_free_ones(official: openai.OpenAI) -> None:
    def stream(seed: int) -> dict[int, str]:
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
        texts = dict.fromkeys(range(3), "")
        for chunk in official.chat.completions.create(
            model="tiny", messages=USER, response_format=wanted, n=3, seed=seed, stream=True, max_tokens=300
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    def free(seed: int) -> str:
        reply = official.completions.create(model="tiny", prompt="ahoy", seed=seed, max_tokens=60)
        return reply.choices[0].text

    alone = [free(seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as threads:
        bound, beside = threads.map(stream, range(4)), threads.map(free, range(4))
        for texts in bound:
            for text in texts.values():
                Weather.model_validate_json(text)
        assert [*beside] == alone


def test_a_grammar_that_explodes_is_refused_and_the_engine_goes_on(official: openai.OpenAI, served: Any) -> None:
    invalid = 'fairlead_engine_http_requests_total{model_name="tiny",outcome="invalid"}'
    before = served.metric(invalid)
    grammar = "start: a " + "a? " * 3000 + '\na: "a" | "b"'
    with pytest.raises(openai.BadRequestError, match="max is 2000") as refused:
        official.completions.create(model="tiny", prompt="x", max_tokens=9, extra_body={"guided_grammar": grammar})
    assert (refused.value.param, refused.value.type) == ("guided_grammar", "invalid_request_error")
    assert served.metric(invalid) == before + 1
    with pytest.raises(openai.BadRequestError, match=r"<\|tool\|>"):
        official.completions.create(model="tiny", prompt="x", extra_body={"guided_grammar": 'start: <|tool|> "a"'})
    reply = official.completions.create(model="tiny", prompt="x", extra_body={"guided_choice": ["yes"]})
    assert reply.choices[0].text == "yes"
