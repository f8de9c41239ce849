"""`POST /v1/embeddings`: a vector of each prompt, by the way that all requests take (`generate_endpoints.py`)."""

import base64
import sys
from array import array
from collections.abc import Sequence

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.server.detokenizer import TextDelta
from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.generate_endpoints import PromptEndpoint
from fairlead_engine.server.generation import Generation
from fairlead_engine.server.prompts import embedding_prompts
from fairlead_engine.server.schemas import EmbeddingRequest
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.types import Kind, Pooling, Reading, SamplingParams, SequenceOutput
from fairlead_protocol.messages import HEADER_CACHED_TOKENS


class VectorReader:
    """Keeps a sequence's vector. There is no text."""

    num_tokens = 0

    def __init__(self) -> None:
        self.vector = b""
        """Little-endian float32."""

    def push(self, output: SequenceOutput) -> TextDelta:
        self.vector = output.embedding or self.vector
        return TextDelta("", [], finish_reason=output.finish_reason)


class EmbeddingEndpoint(PromptEndpoint[EmbeddingRequest]):
    """`POST /v1/embeddings`."""

    schema = EmbeddingRequest
    kind = Kind.EMBED

    def check(self, request: EmbeddingRequest, model: ServedModel) -> None:
        if request.pooling == Pooling.CLS and not model.info.task.sees_all:
            raise RequestError(
                "pooling",
                "pooling = 'cls' is of no use here: this model's first token sees none of the others; leave it out",
            )

    def pooling(self, request: EmbeddingRequest, model: ServedModel) -> Pooling:
        return Pooling(request.pooling or model.info.task.pooling)

    def reading(self, model: ServedModel) -> Reading:
        return model.info.task.reading

    def sampling(self, request: EmbeddingRequest, model: ServedModel) -> SamplingParams:
        return SamplingParams(max_tokens=0)

    def prompts(self, request: EmbeddingRequest, model: ServedModel) -> list[list[int]]:
        return embedding_prompts(request, model)

    def reader(
        self, request: EmbeddingRequest, prompt: list[int], sampling: SamplingParams, model: ServedModel
    ) -> VectorReader:
        return VectorReader()

    async def send(
        self, exchange: Exchange, request: EmbeddingRequest, model: ServedModel, generation: Generation
    ) -> None:
        async for _ in generation.batches():
            pass
        vectors = [choice.reader.vector for choice in generation.choices if isinstance(choice.reader, VectorReader)]
        data = await self._service.prepared(sum(map(len, vectors)), lambda: written(vectors, request.encoding_format))
        num_tokens = generation.num_prompt_tokens
        usage = {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
        }
        reply = {"object": "list", "data": data, "model": request.model, "usage": usage}
        headers = {HEADER_CACHED_TOKENS: str(generation.num_cached_tokens)}
        await exchange.send_json(msgspec.json.encode(reply), headers=headers)


def written(vectors: Sequence[bytes], encoding_format: str | None) -> msgspec.Raw:
    """Vectors of little-endian float32 as OpenAI's list of embeddings. A thousand numbers take a third of a
    millisecond."""
    entries = []
    for index, vector in enumerate(vectors):
        embedding = base64.b64encode(vector).decode() if encoding_format == "base64" else vector_of(vector)
        entries.append({"object": "embedding", "index": index, "embedding": embedding})
    return msgspec.Raw(msgspec.json.encode(entries))


def vector_of(little_endian: bytes) -> list[float]:
    """Numbers of a vector of float32 as the engine writes it."""
    values = array("f", little_endian)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
