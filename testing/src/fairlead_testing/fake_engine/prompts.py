"""How a fake engine reads prompts: a small real tokenizer and chat template, and what `/fairlead/v1/model` says."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fairlead.routing.replica import Limits
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import FIELD_TOKENS, ModelBrief, ModelInfo, PromptTokens

ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class UnreadablePrompt(Exception):
    """A body without a prompt, or with what is none."""


@cache
def make_tokenizer() -> PromptTokenizer:
    """Every byte of UTF-8 is a token, and every role is one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([f"<|{role}|>" for role in ROLES])
    return PromptTokenizer(backend.to_str(), chat_template=CHAT_TEMPLATE)


def read_prompt(body: Mapping[str, Any]) -> list[int]:
    """The token ids of a request: as the gateway sent them, where it used this tokenizer, else made here.

    Only the first prompt counts where there are several.

    Raises:
        UnreadablePrompt: There is none, or it is no prompt; an engine answers 400.
    """
    try:
        return _read_prompt(body)
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise UnreadablePrompt(f"no prompt can be read: {error!r}") from error


def _read_prompt(body: Mapping[str, Any]) -> list[int]:
    tokenizer = make_tokenizer()
    if (sent := body.get(FIELD_TOKENS)) is not None:
        tokens = msgspec.convert(sent, PromptTokens)
        if tokens.digest == tokenizer.digest:
            return tokens.prompts[0]
    if "messages" in body:
        return tokenizer.encode_chat(body["messages"], tools=body.get("tools"))
    prompt = next(body[name] for name in ("prompt", "input", "query") if name in body)
    if isinstance(prompt, list):
        if not prompt or isinstance(prompt[0], int):
            return prompt
        prompt = prompt[0]
    return prompt if isinstance(prompt, list) else tokenizer.encode(prompt)


def model_info(
    served_name: str,
    limits: Limits,
    *,
    adapters: tuple[str, ...] = (),
    token_budget: int,
    num_kv_blocks: int,
    tokenizer: PromptTokenizer,
) -> ModelInfo:
    """What a fake engine says of itself."""
    return ModelInfo(
        engine_version="fake",
        served_name=served_name,
        digest=tokenizer.digest,
        tokenizer_json=tokenizer.tokenizer_json,
        chat_template=tokenizer.chat_template.source if tokenizer.chat_template else None,
        special_tokens={},
        embedding_prompts=tokenizer.embedding_prompts,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len or num_kv_blocks * limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_queued_tokens=limits.max_num_queued_tokens,
        max_num_batched_tokens=token_budget,
        num_kv_blocks=num_kv_blocks,
        dtype="float32",
        device="cpu",
        architecture="FakeForCausalLM",
        adapters=list(adapters),
    )


def told(info: ModelBrief) -> tuple[ModelBrief, bytes | None]:
    """What an engine says of itself as a gateway's tokenizers are told it."""
    return info, msgspec.json.encode(info) if isinstance(info, ModelInfo) else None
