"""Sampling fields of a request, over the model's own defaults → `SamplingParams` per choice.

Pure. Values out of range become a `RequestError` with the client's name of the field.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead_engine.api.schemas import ChatRequest, CompletionRequest, GenerationRequest
from fairlead_engine.errors import ModelLoadError, ModelLoadReason, RequestError
from fairlead_engine.types import MAX_SEED, Grammar, SamplingParams, dry_breakers
from fairlead_engine.types.parameters import Declared, Encode, declared

COMPLETIONS_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` for text completions; chats go on to the end of the context."""


_BREAKERS = ["\n", ":", '"', "*"]


def model_defaults(folder: Path) -> dict[str, Any]:
    """Sampling defaults that the model's makers recommend in `generation_config.json`; empty without that file."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = [each.field for each in declared(SamplingParams) if each.parameter.from_model]
        given = {name: content[name] for name in names if content.get(name) is not None}
        sampling = msgspec.convert(given, SamplingParams, strict=False)  # a top_k of 20.0, too, as an int
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} cannot be used: {error}") from error
    return {name: getattr(sampling, name) for name in given}


def chat_sampling(request: ChatRequest, defaults: Mapping[str, Any], encode: Encode) -> SamplingParams:
    """How to sample a chat's answer. `encode`: by the model's tokenizer."""
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs", "top_logprobs needs logprobs = true")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _sampling(
        request,
        defaults,
        encode,
        max_tokens=request.answer_limit.max_tokens,
        logprobs=num_logprobs,
        prompt_logprobs=request.prompt_logprobs,
    )


def completion_sampling(request: CompletionRequest, defaults: Mapping[str, Any], encode: Encode) -> SamplingParams:
    """How to sample a text completion. `encode`: by the model's tokenizer."""
    limit = request.answer_limit.max_tokens
    of_prompt = [request.prompt_logprobs, request.logprobs if request.echo else None]
    return _sampling(
        request,
        defaults,
        encode,
        max_tokens=COMPLETIONS_MAX_TOKENS if request.max_tokens is None else limit,
        logprobs=0 if request.chooses and request.logprobs is None else request.logprobs,
        prompt_logprobs=max((number for number in of_prompt if number is not None), default=None),
    )


def with_grammar(sampling: SamplingParams, grammar: Grammar) -> SamplingParams:
    try:
        return msgspec.structs.replace(sampling, grammar=grammar)
    except ValueError as error:
        raise RequestError(str(error).split(maxsplit=1)[0], str(error)) from None


def for_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """The parameters for the choice `index` of one prompt: choices of a seeded request differ, reproducibly."""
    if index == 0 or sampling.seed is None:
        return sampling
    seed = sampling.seed + index
    return msgspec.structs.replace(sampling, seed=seed if seed <= MAX_SEED else seed - 2 * (MAX_SEED + 1))


def _sampling(
    request: GenerationRequest, defaults: Mapping[str, Any], encode: Encode, **settled: int | None
) -> SamplingParams:
    """`settled`: values computed from several fields."""
    try:
        given = {
            each.field: _read(each, value, encode)
            for each in declared(SamplingParams)
            if (value := getattr(request, each.name)) is not None
        }
        if request.dry_multiplier and request.dry_sequence_breakers is None:
            given["dry_sequence_breakers"] = dry_breakers(encode, _BREAKERS)
        return SamplingParams(**{**defaults, **given, **settled})
    except ValueError as error:
        raise RequestError(str(error).split(maxsplit=1)[0], str(error)) from None


def _read(each: Declared, value: Any, encode: Encode) -> Any:
    if each.parameter.encode is None:
        return each.parameter.read(value)
    try:
        return each.parameter.encode(encode, value)
    except ValueError:
        raise
    except Exception as error:  # tokenizers raises bare ones
        raise ValueError(f"{each.name} cannot be tokenised by this model: {error}") from error
