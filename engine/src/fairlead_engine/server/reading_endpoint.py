"""Requests that are answered with what is read off prompts, and not with text: what they have in common, and
`POST /v1/embeddings`."""

import base64
import sys
import time
from abc import abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.server.detokenizer import TextDelta
from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.generate_endpoints import PromptEndpoint, Request
from fairlead_engine.server.generation import Generation
from fairlead_engine.server.prompts import embedding_fields
from fairlead_engine.server.schemas import EmbeddingRequest
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.types import Kind, Pooling, Reading, SamplingParams, SequenceOutput
from fairlead_protocol.messages import HEADER_CACHED_TOKENS
from fairlead_protocol.prompts import PromptFields


class VectorReader:
    """Keeps a sequence's vector. There is no text."""

    num_tokens = 0

    def __init__(self) -> None:
        self.vector = b""
        """Little-endian float32."""

    def push(self, output: SequenceOutput) -> TextDelta:
        self.vector = output.embedding or self.vector
        return TextDelta("", [], finish_reason=output.finish_reason)


class ReadingEndpoint(PromptEndpoint[Request]):
    """Waits for the vectors of all prompts, and tells what is made of them."""

    async def sampling(self, request: Request, model: ServedModel) -> SamplingParams:
        return SamplingParams(max_tokens=0)

    def reader(self, request: Request, prompt: list[int], sampling: SamplingParams, model: ServedModel) -> VectorReader:
        return VectorReader()

    async def send(self, exchange: Exchange, request: Request, model: ServedModel, generation: Generation) -> None:
        async for _ in generation.batches():
            pass
        vectors = [choice.reader.vector for choice in generation.choices if isinstance(choice.reader, VectorReader)]
        told = await self._service.prepared(sum(map(len, vectors)), lambda: self.told(request, model, vectors))
        num_tokens = generation.num_prompt_tokens
        usage = {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
        }
        reply = {"id": exchange.request_id, "created": int(time.time()), "model": request.model, **told, "usage": usage}
        headers = {HEADER_CACHED_TOKENS: str(generation.num_cached_tokens)}
        await exchange.send_json(msgspec.json.encode(reply), headers=headers)

    @abstractmethod
    def told(self, request: Request, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        """The reply's own fields, of what was read off each prompt: little-endian float32. May run in a thread."""


def vector_of(little_endian: bytes) -> list[float]:
    """Numbers of a vector of float32 as the engine writes it."""
    values = array("f", little_endian)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


class EmbeddingEndpoint(ReadingEndpoint[EmbeddingRequest]):
    """`POST /v1/embeddings`."""

    schema = EmbeddingRequest
    kind = Kind.EMBED

    async def check(self, request: EmbeddingRequest, model: ServedModel) -> None:
        if request.pooling == Pooling.CLS and not model.info.task.sees_all:
            raise RequestError(
                "pooling",
                "pooling = 'cls' is of no use here: this model's first token sees none of the others; leave it out",
            )

    def pooling(self, request: EmbeddingRequest, model: ServedModel) -> Pooling:
        return Pooling(request.pooling or model.info.task.pooling)

    def reading(self, model: ServedModel) -> Reading:
        return model.info.task.reading

    def fields(self, request: EmbeddingRequest, model: ServedModel) -> PromptFields:
        return embedding_fields(request, model)

    def told(self, request: EmbeddingRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        return {"object": "list", "data": written(vectors, request.encoding_format)}


def written(vectors: Sequence[bytes], encoding_format: str | None) -> msgspec.Raw:
    """Vectors of little-endian float32 as OpenAI's list of embeddings. A thousand numbers take a third of a
    millisecond."""
    entries = []
    for index, vector in enumerate(vectors):
        embedding = base64.b64encode(vector).decode() if encoding_format == "base64" else vector_of(vector)
        entries.append({"object": "embedding", "index": index, "embedding": embedding})
    return msgspec.Raw(msgspec.json.encode(entries))
