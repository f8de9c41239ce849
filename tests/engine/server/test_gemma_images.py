"""Chats with images for Gemma 3, over HTTP with the official client: prompts are those of transformers' processor,
which puts marks and blank lines around images, and answers the model's."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine_testing.gemma_checkpoints import SIDE, SPECIAL, TEMPLATE, write_seeing_gemma
from fairlead_engine_testing.hostile_images import encoded
from fairlead_engine_testing.vision_checkpoints import noise

CONTENTS = [
    ["look: ", noise(24, 24, 1), " and then?"],
    [noise(64, 30, 2), "\n one", noise(24, 24, 3), noise(9, 90, 4)],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_seeing_gemma(tmp_path_factory.mktemp("models") / "gemma")


@pytest.fixture(scope="module")
def client(folder, start_engine_in, tmp_path_factory) -> Iterator[openai.OpenAI]:
    starter = start_engine_in(tmp_path_factory.mktemp("seeing"))
    engine = starter(
        "--model", str(folder), "--served-name", "vision", "--kv-cache-memory", "4Mi", "--dtype", "float32",
        "--max-num-batched-tokens", "40", "--max-num-seqs", "4", "--max-model-len", "400",
    )  # fmt: skip
    engine.wait_ready()
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    starter.kill()


@pytest.fixture(scope="module")
def processor(folder) -> Any:
    import transformers
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    images = Gemma3ImageProcessorPil.from_pretrained(folder)
    return transformers.Gemma3Processor(images, tokenizer, chat_template=TEMPLATE, image_seq_length=SIDE**2)


def read(processor: Any, content: list[Any]) -> Any:
    """The model's input, by transformers. `content`: texts and images."""
    parts = [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in content]
    text = processor.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    pictures = [each for each in content if not isinstance(each, str)]
    return processor(text=text, images=pictures, return_tensors="pt", add_special_tokens=False)


def sent(picture: Image.Image) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(encoded(picture)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("content", CONTENTS)
def test_the_prompt_and_the_answer_are_transformers(content, client, folder, processor):
    import transformers

    model = transformers.Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = read(processor, content)
    with torch.inference_mode():
        found = model.generate(**inputs, do_sample=False, max_new_tokens=8, min_new_tokens=8, pad_token_id=0)
    wanted = processor.tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    parts = [{"type": "text", "text": each} if isinstance(each, str) else sent(each) for each in content]
    answer = client.chat.completions.create(
        model="vision", messages=[{"role": "user", "content": parts}], temperature=0.0, max_tokens=8,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.usage is not None and answer.usage.prompt_tokens == inputs["input_ids"].shape[1]
    assert answer.choices[0].message.content == wanted


@pytest.mark.parametrize("content", CONTENTS)
def test_tokens_are_those_of_the_processor(content, folder, processor):
    """But for the number of an image's tokens, of which a rendered chat has one."""
    tokenizer = PromptTokenizer.from_folder(folder).seeing(SPECIAL[5], (SPECIAL[3], SPECIAL[4]))
    assert tokenizer.digest != PromptTokenizer.from_folder(folder).seeing(SPECIAL[5]).digest
    parts = [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image_url"} for each in content]
    ids = tokenizer.encode_chat([{"role": "user", "content": parts}])
    soft = tokenizer.token_id(SPECIAL[5])
    wanted = [part for each in ids for part in [each] * (SIDE**2 if each == soft else 1)]
    assert read(processor, content)["input_ids"][0].tolist() == wanted


def test_a_mark_in_a_text_is_no_image(client):
    with pytest.raises(openai.BadRequestError, match="has 1 places for images, and messages 0"):
        client.chat.completions.create(model="vision", messages=[{"role": "user", "content": f"look {SPECIAL[3]}"}])
