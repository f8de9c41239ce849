"""A server's model: name, tokenizer, limits and sampling defaults; makes and checks prompts.

Exists once the core has started. Pure but for reading the model's folder.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from fairlead_common.openai.prompts import AnswerLimit, EncodedPrompt, PromptError, PromptFields, PromptTooLong
from fairlead_common.tokens.least_tokens import LeastTokenCounter
from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError
from fairlead_common.wire.adapters import UnknownAdapter, split_adapter
from fairlead_common.wire.messages import ModelInfo
from fairlead_engine.api.answers.answer_formats import TEXT_ONLY, AnswerFormats
from fairlead_engine.api.answers.object_formats import Instructed
from fairlead_engine.api.grammar_job import GrammarJob
from fairlead_engine.api.image_loader import placed, with_image_tokens
from fairlead_engine.api.prompt_program import ModelShape, encoded_prompts
from fairlead_engine.api.sampling import model_defaults
from fairlead_engine.api.structured_output import Wish
from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.api.tool_use import ToolUse, reasoning_has_begun
from fairlead_engine.errors import ModelLoadError, ModelLoadReason, RequestError
from fairlead_engine.host.refusals import NotFound
from fairlead_engine.images.image import DecodedImage
from fairlead_engine.model.tokenizer_files import read_tokenizer
from fairlead_engine.types import EngineInfo, Injectable, Kind, PromptImage, SamplingParams
from fairlead_engine.version import __version__

_ABILITIES = {
    Kind.GENERATE: "generate text (/v1/chat/completions, /v1/completions)",
    Kind.EMBED: "make embeddings (/v1/embeddings)",
    Kind.SCORE: "compare texts (/v1/rerank, /v1/score)",
    Kind.CLASSIFY: "classify texts (/v1/classify)",
}


class ModelFiles:
    """The HTTP process's own view of a model's folder."""

    def __init__(self, tokenizer: PromptTokenizer, sampling_defaults: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.formats: AnswerFormats | None = None
        """Formats of answers; None = not determined yet."""
        self.sampling_defaults = sampling_defaults

    @classmethod
    def read(cls, folder: Path, template: str | None = None, *, renders: bool = True) -> "ModelFiles":
        """`template`: of chats, in place of the model's. `renders`: whether chats are rendered in this process. Raises
        `ModelLoadError` (TokenizerInvalid, ModelConfigInvalid)."""
        try:
            return cls(read_tokenizer(folder, template, renders=renders), model_defaults(folder))
        except TokenizerError as error:
            text = f"{folder}: this tokenizer cannot be served: {error}"
            raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, text) from error


class ServedModel:
    """A loaded model as requests see it."""

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        info: EngineInfo,
        created: int | None = None,
        formats: AnswerFormats = TEXT_ONLY,
        adapters: Callable[[], Collection[str]] = tuple,
        virtual_tokens: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`created`: time of loading, for clients; Unix time, None = now. `formats`: of answers' parts besides text.
        `adapters`: names of the adapters available now. `virtual_tokens`: number by name, for soft prompts."""
        self.name = name
        self.info = info
        task = info.task
        image_token, image_frame = None, None
        if task.images is not None:
            text_of = files.tokenizer.backend.id_to_token
            image_token = text_of(task.images.image_token_id) or ""
            if task.images.frame is not None:
                begin, end = (text_of(each) or "" for each in task.images.frame)
                image_frame = begin, end
        instructs_tools = isinstance(formats.tools, Instructed)
        self.shape = ModelShape(info.max_model_len, task.joins_pairs, image_token, instructs_tools, image_frame)
        self.tokenizer = self.shape.seen_by(files.tokenizer)
        self.vocabulary = files.vocabulary
        self.sampling_defaults = files.sampling_defaults
        self.formats = formats
        self.marker_ids = frozenset(
            token_id for marker in formats.markers if (token_id := files.vocabulary.special_id(marker)) is not None
        )
        """Special tokens of the formats."""
        self.created = int(time.time()) if created is None else created
        self._adapters = adapters
        self._virtual_tokens = virtual_tokens
        self._protocol_json: tuple[list[str], bytes] | None = None

    @property
    def capabilities(self) -> list[str]:
        """As `ModelBrief` has them."""
        if Kind.GENERATE not in self.info.task.kinds:
            return ["embedding"] if Kind.EMBED in self.info.task.kinds else []
        more = {
            "tools": self.formats.tools is not None,
            "thinking": self.formats.thought is not None,
            "vision": self.info.task.images is not None,
        }
        return ["completion", *(name for name, is_there in more.items() if is_there)]

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters available now."""
        return list(self._adapters())

    def adapter(self, name: str) -> str | None:
        """The adapter in the `model` field of a request. Raises `NotFound` for an unknown model or adapter."""
        base, adapter = split_adapter(name, (self.name,))
        if base != self.name:
            raise NotFound(
                "model", f"the model {name!r} is not served here; this server has {self.name!r}", "model_not_found"
            )
        if adapter is not None and adapter not in self._adapters():
            error = UnknownAdapter(adapter, self._adapters())
            raise NotFound(error.field, error.message, error.code)
        return adapter

    def check_kind(self, kind: Kind) -> None:
        """Raises `RequestError`, with the model's abilities, for a request of another kind."""
        kinds = self.info.task.kinds
        if kind not in kinds:
            able = " and ".join(_ABILITIES[each] for each in kinds)
            sentence = f"the model {self.name!r} does not {_ABILITIES[kind]}; what it does is to {able}"
            raise RequestError("model", sentence, "unsupported_operation")

    def prompts(self, fields: PromptFields) -> list[tuple[str, EncodedPrompt]]:
        """Each prompt of a request, with the place; made in this process, which must serve nobody else. Raises
        `RequestError`."""
        try:
            return encoded_prompts(fields, self.tokenizer, self._least_tokens, self.info.max_model_len)
        except PromptError as error:
            raise request_error(error) from error

    @cached_property
    def _least_tokens(self) -> LeastTokenCounter:
        return LeastTokenCounter(self.tokenizer)

    def seen(self, token_ids: list[int], images: Sequence[DecodedImage]) -> list[int]:
        """A rendered chat with each image's token repeated to its number of patches. Raises `RequestError`."""
        settings = self.info.task.images
        return token_ids if settings is None else with_image_tokens(token_ids, images, settings.image_token_id)

    def placed(self, images: Sequence[DecodedImage], token_ids: list[int]) -> tuple[PromptImage, ...]:
        """The images at their places in the prompt."""
        settings = self.info.task.images
        return () if settings is None else placed(images, token_ids, settings.image_token_id)

    def check_prompt(self, token_ids: Sequence[int], field: str) -> None:
        """Raises `RequestError` for a prompt that is empty, too long, or has unknown token ids."""
        if not token_ids:
            raise RequestError(field, f"{field} is empty; send at least one token")
        if len(token_ids) >= self.info.max_model_len:
            raise request_error(PromptTooLong(field, len(token_ids), self.info.max_model_len))
        self.check_token_ids(token_ids, field)

    def check_room(self, token_ids: Sequence[int], limit: AnswerLimit) -> None:
        """Raises `RequestError` where the context lacks room for the prompt and all of the answer asked for."""
        try:
            limit.check(len(token_ids), self.info.max_model_len)
        except PromptError as error:
            raise request_error(error) from error

    def num_virtual_tokens(self, model: str) -> int:
        """Number of tokens of the soft prompt named by a request's `model`."""
        virtual_tokens = self._virtual_tokens()
        return virtual_tokens.get(self.adapter(model) or "", 0) if virtual_tokens else 0

    def check_beside(self, num_virtual: int, token_ids: Sequence[int], field: str, limit: AnswerLimit) -> None:
        """Raises `RequestError` where a soft prompt leaves too little room for a prompt and the answer asked for."""
        room = self.info.max_model_len - num_virtual
        beside = (
            f"the adapter's soft prompt takes {num_virtual} of this model's context of {self.info.max_model_len} tokens"
        )
        if len(token_ids) >= room:
            problem = f"{beside}, and the prompt has {len(token_ids)}; shorten it to at most {room - 1}"
            raise RequestError(field, problem, "context_length_exceeded")
        if limit.max_tokens is not None and len(token_ids) + limit.max_tokens > room:
            problem = f"{beside}, the prompt {len(token_ids)}; lower {limit.field} to at most {room - len(token_ids)}"
            raise RequestError(limit.field, problem, "context_length_exceeded")

    def check_token_ids(self, token_ids: Collection[int], field: str) -> None:
        """Raises `RequestError` for ids outside the vocabulary."""
        last = self.info.vocab_size - 1
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id <= last:
                raise RequestError(field, f"{field} holds the token id {token_id}; ids go from 0 to {last}")

    def grammar_job(self, wish: Wish | None, use: ToolUse | None, prompt: Sequence[int] | None) -> GrammarJob:
        """Job for the grammar of an answer; `prompt` = None: an answer without formats, as of a text completion."""
        formats = TEXT_ONLY if prompt is None else self.formats
        has_begun = prompt is not None and reasoning_has_begun(prompt, formats, self.vocabulary)
        return GrammarJob(wish, use, formats, self._named_ids, has_begun, self.info.vocab_size)

    @cached_property
    def _named_ids(self) -> tuple[tuple[str, int], ...]:
        found = ((marker, self.vocabulary.named_id(marker)) for marker in self.formats.markers)
        return tuple((marker, token_id) for marker, token_id in found if token_id is not None)

    def thinking_markers(self, begin: list[int], end: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Ids of the markers around reasoning, if each begins with an added token."""
        added = self.tokenizer.backend.get_added_tokens_decoder()
        return (tuple(begin), tuple(end)) if begin and end and begin[0] in added and end[0] in added else None

    @cached_property
    def injectable(self) -> Injectable | None:
        """Blocks of tokens that an injection must not split, if every block begins and ends with a single token; None =
        calls cannot be recognised by tokens."""
        tools, thought = self.formats.tools, self.formats.thought
        texts = [] if tools is None or tools.block is None else [tools.block]
        if not texts:
            return None
        texts += [] if thought is None else [(thought.begin, thought.end)]
        ids = [tuple(self.tokenizer.token_id(text) for text in pair) for pair in texts]
        blocks = [(begin, end) for begin, end in ids if begin is not None and end is not None]
        return Injectable(blocks) if len(blocks) == len(texts) else None

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Raises `RequestError` for token ids unknown to the model."""
        for name, token_ids in sampling.named_token_ids.items():
            self.check_token_ids(token_ids, name)

    @property
    def protocol_json(self) -> bytes:
        """Body of `GET /fairlead/v1/model`, encoded once per set of adapters: a tokenizer can have many megabytes."""
        adapters = self.adapters
        if self._protocol_json is None or self._protocol_json[0] != adapters:
            self._protocol_json = adapters, msgspec.json.encode(self._protocol_model(adapters))
        return self._protocol_json[1]

    def _protocol_model(self, adapters: list[str]) -> ModelInfo:
        tokenizer, info = self.tokenizer, self.info
        return ModelInfo(
            engine_version=__version__,
            served_name=self.name,
            digest=tokenizer.digest,
            tokenizer_json=tokenizer.tokenizer_json,
            chat_template=tokenizer.chat_template.source if tokenizer.chat_template else None,
            special_tokens=tokenizer.special_tokens,
            embedding_prompts=tokenizer.embedding_prompts,
            block_size=info.block_size,
            max_model_len=info.max_model_len,
            max_position_embeddings=info.max_position_embeddings,
            max_num_seqs=info.max_num_seqs,
            max_num_queued_tokens=info.max_num_queued_tokens,
            max_num_batched_tokens=info.max_num_batched_tokens,
            num_kv_blocks=info.num_kv_blocks,
            dtype=info.dtype,
            device=info.device,
            architecture=info.architecture,
            adapters=adapters,
            shares_prefixes=info.shares_prefixes,
            keeps_states=info.keeps_states,
            joins_pairs=tokenizer.joins_pairs,
            image_token=tokenizer.image_token,
            image_frame=tokenizer.image_frame,
            instructs_tools=tokenizer.instructs_tools,
            capabilities=self.capabilities,
        )


def request_error(error: PromptError) -> RequestError:
    return RequestError(error.field, error.message, error.code)
