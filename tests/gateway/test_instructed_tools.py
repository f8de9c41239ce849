"""Chats with tools for a model whose template knows none: the gateway makes the prompt that the engine would."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlead.gateway.openai.parse import parse
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead_common.http.lanes import Pacer
from fairlead_common.openai.instructed import instruction
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import ModelInfo
from fairlead_engine.api.answers.answer_formats import choose_formats
from fairlead_engine.api.prompts import chat_fields
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine_testing.byte_level import byte_level
from fairlead_engine_testing.prompts_here import prompts_here
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_testing.fake_engine.prompts import told

KNOWS_NONE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
TOOLS: Any = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
ASKED = {"role": "user", "content": "How high?"}
HISTORY = [ASKED, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "2 m"}]


@pytest.fixture
def model() -> ServedModel:
    tokenizer = PromptTokenizer(byte_level(["</s>"]).to_str(), chat_template=KNOWS_NONE)
    formats = choose_formats(KNOWS_NONE, "auto", "auto")
    return ServedModel("old", ModelFiles(tokenizer, {}), scripted_info(vocab_size=300, max_model_len=4096), 1, formats)


@pytest.fixture
async def reader(model: ServedModel) -> AsyncIterator[PromptReader]:
    tokenizers = Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    yield PromptReader(tokenizers, Pacer())
    tokenizers.close()


@pytest.mark.parametrize("messages", [[ASKED], HISTORY])
@pytest.mark.parametrize("tools", [TOOLS, None])
async def test_gateway_and_engine_make_the_same_prompt(
    model: ServedModel, reader: PromptReader, messages: Any, tools: Any
) -> None:
    body = json.dumps({"model": "old", "messages": messages, **({"tools": tools} if tools else {})}).encode()
    prompt = await reader.read(parse("/v1/chat/completions", body, [], request_id="1"), [model.tokenizer.digest])
    [tokens] = prompt.by_digest[model.tokenizer.digest]
    [(ids, _)] = prompts_here(decode(body, ChatRequest, UnknownFields("refuse")), model, chat_fields, [])
    assert list(tokens.token_ids) == ids
    text = model.tokenizer.decode(ids, skip_special_tokens=False)
    assert (instruction(TOOLS) in text) is bool(tools)
    assert ("<tool_response>\n2 m\n</tool_response>" in text) is (messages is HISTORY)
