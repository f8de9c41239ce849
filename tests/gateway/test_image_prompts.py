"""What a gateway knows of a chat with images: everything before the first, by the engine's own names of blocks."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.gateway.openai.parse import InferenceRequest, parse
from fairlead.gateway.prompts.fields import TOKENS_PER_IMAGE
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead.routing.prompt import Tokens
from fairlead_common.http.lanes import Pacer
from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.openai.unknown_fields import UnknownFields
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import ModelInfo
from fairlead_engine.api.prompts import chat_fields
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.served_model import ModelFiles, ServedModel
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.images.image import DecodedImage
from fairlead_engine.types import ModelTask, SamplingParams
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing.gemma_checkpoints import BEGIN_IMAGE, END_IMAGE, SOFT, write_gemma_tokenizer
from fairlead_engine_testing.prompts_here import prompts_here
from fairlead_engine_testing.scripted_engine import scripted_info
from fairlead_engine_testing.vision_checkpoints import PAD, VOCAB_SIZE, write_vision_tokenizer
from fairlead_testing.fake_engine.prompts import told

MAX_MODEL_LEN = 4096
BLOCK_SIZE = 16
SETTINGS = ImageSettings(
    image_token_id=PAD, patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=2**20,
    mean=(0.5,) * 3, std=(0.5,) * 3,
)  # fmt: skip
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}

FIVE_BY_SEVEN = DecodedImage(5, 7, b"", b"d" * 16)


def served(folder: Path, images: ImageSettings | None = SETTINGS) -> ServedModel:
    write_vision_tokenizer(folder)
    info = scripted_info(
        vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, task=ModelTask(images=images)
    )
    return ServedModel("vision", ModelFiles(PromptTokenizer.from_folder(folder), {}), info)


@pytest.fixture
def model(tmp_path) -> ServedModel:
    return served(tmp_path)


@pytest.fixture
async def reader(model) -> AsyncIterator[PromptReader]:
    tokenizers = Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    reader = PromptReader(tokenizers, Pacer())
    yield reader
    tokenizers.close()


def body_of(*content: Any) -> bytes:
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return json.dumps({"model": "vision", "messages": [{"role": "user", "content": parts}]}).encode()


def request(*content: Any) -> InferenceRequest:
    return parse("/v1/chat/completions", body_of(*content), [], request_id="1")


def known(prompt: Any, model: ServedModel) -> Tokens:
    [tokens] = prompt.by_digest[model.tokenizer.digest]
    return tokens


async def test_blocks_before_an_image_have_the_engines_names_and_no_ids_are_sent(reader, model):
    body = body_of("a long introduction, of some blocks. " * 3, IMAGE, "and what is behind it")
    prompt = await reader.read(parse("/v1/chat/completions", body, [], request_id="1"), [model.tokenizer.digest])
    tokens = known(prompt, model)
    [(ids, _)] = prompts_here(decode(body, ChatRequest, UnknownFields("refuse")), model, chat_fields, [FIVE_BY_SEVEN])
    images = model.placed([FIVE_BY_SEVEN], ids)
    sequence = Sequence("1", ids, len(ids), SamplingParams(), images=images)
    BlockManager(64, BLOCK_SIZE).match(sequence)
    num_known = (images[0].start - 1) // BLOCK_SIZE
    assert num_known >= 7
    assert tokens.hashes(BLOCK_SIZE) == sequence.block_hashes[:num_known]
    assert list(tokens.token_ids) == ids[: images[0].start]
    assert prompt.tokens_field(model.tokenizer.digest) is None
    assert prompt.num_tokens == tokens.num_tokens == len(ids) - 35 + TOKENS_PER_IMAGE


async def test_what_is_put_around_images_is_known_too(tmp_path):
    """Of Gemma 3, whose template writes the mark before an image alone."""
    write_gemma_tokenizer(tmp_path)
    settings = msgspec.structs.replace(SETTINGS, image_token_id=SOFT, frame=(BEGIN_IMAGE, END_IMAGE))
    info = scripted_info(vocab_size=300, max_model_len=MAX_MODEL_LEN, task=ModelTask(images=settings))
    model = ServedModel("gemma", ModelFiles(PromptTokenizer.from_folder(tmp_path), {}), info)
    tokenizers = Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    prompt = await PromptReader(tokenizers, Pacer()).read(request("look: ", IMAGE, "so"), [model.tokenizer.digest])
    tokenizers.close()
    chat = decode(body_of("look: ", IMAGE, "so"), ChatRequest, UnknownFields("refuse"))
    [(ids, _)] = prompts_here(chat, model, chat_fields, [FIVE_BY_SEVEN])
    [image] = model.placed([FIVE_BY_SEVEN], ids)
    assert list(known(prompt, model).token_ids) == ids[: image.start]
    assert [ids[image.start - 1], *ids[image.end - 1 : image.end + 1]] == [BEGIN_IMAGE, SOFT, END_IMAGE]
    assert model.tokenizer.decode(ids[: image.start], skip_special_tokens=False).endswith("look:\n\n<start_of_image>")


async def test_the_engines_names_differ_by_the_image(model):
    ids = [1] * 15 + [PAD] * 35 + [2] * 40
    hashes = []
    for digest in (b"a" * 16, b"b" * 16, None):
        images = () if digest is None else (DecodedImage(5, 7, b"", digest).placed(15),)
        sequence = Sequence("1", ids, len(ids), SamplingParams(), images=images)
        BlockManager(64, BLOCK_SIZE).match(sequence)
        hashes.append(sequence.block_hashes)
    assert all(len(set(each)) == 3 for each in zip(*hashes, strict=True))


async def test_what_an_image_may_take_is_never_more_than_there_is_room_for(reader, model):
    prompt = await reader.read(request("look: ", *[IMAGE] * 9), [model.tokenizer.digest])
    assert prompt.num_tokens == MAX_MODEL_LEN - 1
    assert not prompt.too_long


async def test_before_a_tokenizer_is_known_images_count_as_such_and_not_as_text(reader):
    prompt = await reader.read(request("look: ", IMAGE), ["another"])
    assert TOKENS_PER_IMAGE < prompt.num_tokens < TOKENS_PER_IMAGE + 100


async def test_places_that_are_no_images_are_left_to_the_engine_to_refuse(reader, model):
    prompt = await reader.read(request("<|image_pad|>", IMAGE), [model.tokenizer.digest])
    assert (prompt.by_digest, prompt.num_tokens) == ({}, 0)


async def test_of_a_model_that_sees_nothing_too(tmp_path):
    model, tokenizers = served(tmp_path, None), Tokenizers()
    await tokenizers.add(*told(msgspec.json.decode(model.protocol_json, type=ModelInfo)))
    reader = PromptReader(tokenizers, Pacer())
    prompt = await reader.read(request("look: ", IMAGE), [model.tokenizer.digest])
    assert (prompt.by_digest, prompt.num_tokens) == ({}, 0)
    tokenizers.close()


async def test_texts_for_a_model_that_sees_are_tokenised_as_ever(reader, model):
    prompt = await reader.read(request("no image"), [model.tokenizer.digest])
    [(ids, _)] = prompts_here(decode(body_of("no image"), ChatRequest, UnknownFields("refuse")), model, chat_fields)
    assert list(known(prompt, model).token_ids) == ids
    assert prompt.tokens_field(model.tokenizer.digest) is not None
