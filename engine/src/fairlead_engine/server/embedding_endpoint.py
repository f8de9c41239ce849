"""`POST /v1/embeddings`: a vector of each prompt, by the way that all requests take (`generate_endpoints.py`)."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.server.prompts import embedding_fields
from fairlead_engine.server.reading_endpoint import ReadingEndpoint, vector_of
from fairlead_engine.server.schemas import EmbeddingRequest
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.types import Kind, Pooling, Reading
from fairlead_protocol.prompts import PromptFields


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
