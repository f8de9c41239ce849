"""The stages of a request to the model: parse → check → tokenise → run → reply; and the APIs that read results off
prompts: `POST /v1/embeddings`, `/v1/rerank`, `/v1/score`, `/v1/classify`.

Replies to the last three are vLLM's; replies to `/v1/rerank` are also Jina's and Cohere's. A cross-encoder reads each
pair as one prompt with a single label, the score. A model of vectors reads each text once, and the score of a pair is
the cosine of the two vectors.
"""

import base64
import math
import struct
import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import mul
from typing import Any, Generic, TypeVar

import msgspec

from fairlead_common.http.loop_shares import LoopShare
from fairlead_common.openai.prompts import EncodedPrompt, PairPrompts, PromptFields
from fairlead_common.wire.messages import HEADER_CACHED_TOKENS, HEADER_DISPATCH, HEADER_SESSION
from fairlead_engine.api import schemas
from fairlead_engine.api.beam_search import check_beams
from fairlead_engine.api.detokenizer import TextDelta
from fairlead_engine.api.generation import Choice, Generation, OutputReader
from fairlead_engine.api.prompts import check_without_soft_prompt, checked_prompts, fitting, given_prompts
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.sampling import for_choice
from fairlead_engine.api.served_model import ServedModel
from fairlead_engine.api.service import Endpoint
from fairlead_engine.errors import RequestError
from fairlead_engine.host.dispatches import Dispatch
from fairlead_engine.host.exchange import Exchange
from fairlead_engine.images.image import DecodedImage
from fairlead_engine.types import (
    EngineRequest,
    Injectable,
    Kind,
    Pooling,
    Reading,
    SamplingParams,
    SequenceOutput,
)

Request = TypeVar("Request", bound=schemas.PromptRequest)
Read = TypeVar("Read", bound=schemas.ReadRequest)
Comparing = TypeVar("Comparing", schemas.RerankRequest, schemas.ScoreRequest)


class PromptEndpoint(Endpoint, ABC, Generic[Request]):
    """The stages of one request; the APIs differ in the methods below."""

    schema: type[Request]
    kind = Kind.GENERATE

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request; ends when the client leaves."""
        arrival_time = time.time()
        with self._service.stream.dispatches.arrived(exchange.headers.get(HEADER_DISPATCH)) as dispatch:
            self._service.lifecycle.check_accepting()
            await exchange.while_connected(self._answer(exchange, await exchange.body(), arrival_time, dispatch))

    async def _answer(self, exchange: Exchange, body: bytes, arrival_time: float, dispatch: Dispatch) -> None:
        with self._service.lifecycle.admitted() as admission:
            model = self._service.model()
            with admission.stoppable():
                await self._service.pacer.pace(len(body))
                request = decode(body, self.schema, self._service.unknown_fields)
                num_bytes, body = len(body), b""  # an answer may take long, and a body be large
                model.adapter(request.model)  # 404 here
                model.check_kind(self.kind)
                schemas.check(request)
                keep_seconds = request.keep_seconds(exchange.headers.get(HEADER_SESSION))
                await self.check(request, model)
                sampling = await self.sampling(request, model)
                if isinstance(request, schemas.GenerationRequest):
                    check_beams(request, sampling.max_tokens)
                self._service.check_choices(request, sampling)
                image_bytes = self.image_bytes(request)
                size = (num_bytes - image_bytes) * request.rendered_factor
                images = await self.images(request, model)
                exchange.held.release()  # not before: the body of a chat with images is nearly all of its memory
                encoded = await self._prompts(request, model, images, size)
                prompts = [prompt.token_ids for prompt in encoded]
                self._service.check_scores(request, prompts, sampling)
                sampling = await self.constrained(sampling, request, prompts, model)
                model.check_sampling(sampling)
                pooling, reading = self.pooling(request, model)
                template = EngineRequest(
                    request_id="",
                    prompt_token_ids=[],
                    sampling=sampling,
                    arrival_time=arrival_time,
                    cache_salt=request.cache_salt,
                    adapter=model.adapter(request.model),
                    priority=request.priority or 0,
                    pooling=pooling,
                    reading=reading,
                    part_of=f"{exchange.request_id}/{next(self._service.serials)}",
                    # A gateway wants a request back that waits here while another replica is free.
                    max_queue_seconds=None if dispatch.gateway is not None else self._service.config.max_queue_time,
                    injectable=self.injectable(request, prompts, model),
                    keep_seconds=keep_seconds,
                    keep_prefixes=await self.keep_prefixes(request, prompts),
                )
                share = self._service.shares.stream()
                choices = await self._choices(request, model, template, encoded, images, share)
                images = []  # they are large, too
            on_sent = partial(self._service.stream.sent, dispatch=dispatch)
            async with self.generation(request, choices, on_sent, share) as generation:
                admission.attach(generation.stop)
                try:
                    await generation.started()
                    await self.send(exchange, request, model, generation)
                finally:
                    exchange.facts.update(_facts(request, generation, arrival_time))

    async def _prompts(
        self, request: Request, model: ServedModel, images: list[DecodedImage], size: int
    ) -> list[EncodedPrompt]:
        fields, prepared = self.fields(request, model), self._service.prepared
        fields, truncation = fitting(fields, request, model, images)
        given = await prepared(size, lambda: given_prompts(fields, request, model, images, truncation))
        prompts = await self._service.prompts.prompts(fields) if given is None else given
        return await prepared(size, lambda: checked_prompts(prompts, fields, request, model, images))

    async def _choices(
        self,
        request: Request,
        model: ServedModel,
        template: EngineRequest,
        prompts: Sequence[EncodedPrompt],
        images: Sequence[DecodedImage],
        share: LoopShare,
    ) -> list[Choice]:
        """The sequences of a request: `n` for each prompt, in the order of OpenAI's `index`. `template`: the common
        fields. `images`: of a chat's one prompt. `share`: of the loop."""
        choices = []
        async for index, (prompt, each) in share.spread(enumerate(product(prompts, range(request.num_each)))):
            engine_request = msgspec.structs.replace(
                template,
                request_id=f"{template.part_of}.{index}",
                prompt_token_ids=prompt.token_ids,
                second_start=prompt.second_start,
                sampling=for_choice(template.sampling, each),
                images=model.placed(images, prompt.token_ids),
                num_parts_before=index,
            )
            reader = self.reader(request, prompt.token_ids, template.sampling, model)
            choices.append(Choice(index, engine_request, reader))
        return choices

    async def check(self, request: Request, model: ServedModel) -> None:
        """Raises `RequestError`, before tokenising, for a request beyond this model's abilities."""
        return

    def image_bytes(self, request: Request) -> int:
        return 0

    async def images(self, request: Request, model: ServedModel) -> list[DecodedImage]:
        return []

    async def keep_prefixes(self, request: Request, prompts: list[list[int]]) -> tuple[tuple[float, int], ...]:
        """Retention hints for beginnings of the prompt (`EngineRequest.keep_prefixes`); a beginning that the prompt
        does not have is all of the prompt. Raises `RequestError`."""
        return ()

    async def constrained(
        self, sampling: SamplingParams, request: Request, prompts: list[list[int]], model: ServedModel
    ) -> SamplingParams:
        """The parameters with the answer's grammar and bound on reasoning, if any; raises `RequestError`."""
        return sampling

    def generation(
        self, request: Request, choices: list[Choice], on_sent: Callable[[int], None], share: LoopShare
    ) -> Generation:
        """Runs the choices; raises `RequestError`."""
        return Generation(self._service.client, choices, self._service.metrics, on_sent, share)

    def pooling(self, request: Request, model: ServedModel) -> tuple[Pooling | None, Reading]:
        """Pooling of hidden states to a vector (None = text is generated), and reading of the vector."""
        return None, Reading.UNIT

    def injectable(self, request: Request, prompts: list[list[int]], model: ServedModel) -> Injectable | None:
        """Places in the answer where tokens may be injected; None = nowhere."""
        return None

    @abstractmethod
    async def sampling(self, request: Request, model: ServedModel) -> SamplingParams:
        """How to sample; raises `RequestError`."""

    @abstractmethod
    def fields(self, request: Request, model: ServedModel) -> PromptFields:
        """Fields that decide the request's prompts; raises `RequestError`."""

    @abstractmethod
    def reader(self, request: Request, prompt: list[int], sampling: SamplingParams, model: ServedModel) -> OutputReader:
        """Reader of one sequence's outputs."""

    @abstractmethod
    async def send(self, exchange: Exchange, request: Request, model: ServedModel, generation: Generation) -> None:
        """Answers with the outputs."""


def _facts(request: schemas.PromptRequest, generation: Generation, arrival_time: float) -> dict[str, Any]:
    """Fields of the request's log line."""
    first = min((choice.first_token_time for choice in generation.choices if choice.first_token_time), default=None)
    reasons = {str(choice.finish_reason) for choice in generation.choices if choice.finish_reason}
    return {
        "model": request.model,
        "stream": request.is_streamed,
        "num_choices": len(generation.choices) if len(generation.choices) > 1 else None,
        "num_prompt_tokens": generation.num_prompt_tokens,
        "num_cached_tokens": generation.num_cached_tokens,
        "num_completion_tokens": generation.num_output_tokens,
        "ttft_seconds": round(first - arrival_time, 6) if first else None,
        "finish_reason": ",".join(sorted(reasons)) or None,
    }


class VectorReader:
    """Keeps a sequence's vector."""

    num_tokens = 0

    def __init__(self) -> None:
        self.vector = b""
        """Little-endian float32."""

    def push(self, output: SequenceOutput) -> TextDelta:
        self.vector = output.embedding or self.vector
        return TextDelta("", [], finish_reason=output.finish_reason)


class ReadingEndpoint(PromptEndpoint[Read]):
    """Waits for the vectors of all prompts, and answers with the results."""

    async def sampling(self, request: Read, model: ServedModel) -> SamplingParams:
        return SamplingParams(max_tokens=0)

    def pooling(self, request: Read, model: ServedModel) -> tuple[Pooling, Reading]:
        return model.info.task.pooling, Reading.LABELS

    def fields(self, request: Read, model: ServedModel) -> PromptFields:
        check_without_soft_prompt(request, model)
        fields: PromptFields = request.prompt_fields
        return fields

    def reader(self, request: Read, prompt: list[int], sampling: SamplingParams, model: ServedModel) -> VectorReader:
        return VectorReader()

    async def send(self, exchange: Exchange, request: Read, model: ServedModel, generation: Generation) -> None:
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
    def told(self, request: Read, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        """The API's reply fields. `vectors`: one per prompt, little-endian float32. May run in a thread."""


class EmbeddingEndpoint(ReadingEndpoint[schemas.EmbeddingRequest]):
    """`POST /v1/embeddings`."""

    schema = schemas.EmbeddingRequest
    kind = Kind.EMBED

    async def check(self, request: schemas.EmbeddingRequest, model: ServedModel) -> None:
        most = model.info.hidden_size
        if request.dimensions is not None and not 1 <= request.dimensions <= most:
            message = (
                f"dimensions must be in [1, {most}], the numbers of this model's vectors, not {request.dimensions}"
            )
            raise RequestError("dimensions", message)
        if request.pooling == Pooling.CLS and not model.info.task.sees_all:
            raise RequestError(
                "pooling",
                "pooling = 'cls' is of no use here: this model's first token sees none of the others; leave it out",
            )

    def pooling(self, request: schemas.EmbeddingRequest, model: ServedModel) -> tuple[Pooling, Reading]:
        return Pooling(request.pooling or model.info.task.pooling), model.info.task.reading

    def told(self, request: schemas.EmbeddingRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        if request.dimensions is not None:
            is_unit = model.info.task.reading is Reading.UNIT
            vectors = [shortened(each, request.dimensions, is_unit=is_unit) for each in vectors]
        return {"object": "list", "data": written(vectors, request.encoding_format)}


class ComparingEndpoint(ReadingEndpoint[Comparing]):
    """Ranks or scores pairs of texts."""

    kind = Kind.SCORE

    def pooling(self, request: Comparing, model: ServedModel) -> tuple[Pooling, Reading]:
        return model.info.task.pooling, Reading.LABELS if model.info.task.joins_pairs else Reading.UNIT

    def scores(self, request: Comparing, model: ServedModel, vectors: list[bytes]) -> list[float]:
        joins_pairs = model.info.task.joins_pairs
        return pair_scores(request.prompt_fields, [*map(vector_of, vectors)], joins_pairs=joins_pairs)


class RerankEndpoint(ComparingEndpoint[schemas.RerankRequest]):
    """`POST /v1/rerank`."""

    schema = schemas.RerankRequest

    def told(self, request: schemas.RerankRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        scores = self.scores(request, model, vectors)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: request.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if request.return_documents is not False:
            texts = request.prompt_fields.sides()[1].texts
            for result in results:
                result["document"] = {"text": texts[result["index"]]}
        return {"results": results}


class ScoreEndpoint(ComparingEndpoint[schemas.ScoreRequest]):
    """`POST /v1/score`."""

    schema = schemas.ScoreRequest

    def told(self, request: schemas.ScoreRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        scores = self.scores(request, model, vectors)
        data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
        return {"object": "list", "data": data}


class ClassifyEndpoint(ReadingEndpoint[schemas.ClassifyRequest]):
    """`POST /v1/classify`."""

    schema = schemas.ClassifyRequest
    kind = Kind.CLASSIFY

    def told(self, request: schemas.ClassifyRequest, model: ServedModel, vectors: list[bytes]) -> dict[str, Any]:
        labels, data = model.info.task.labels, []
        for index, vector in enumerate(vectors):
            probs = vector_of(vector)
            likeliest = max(range(len(labels)), key=probs.__getitem__)
            data.append({"index": index, "label": labels[likeliest], "probs": probs, "num_classes": len(labels)})
        return {"object": "list", "data": data}


def vector_of(little_endian: bytes) -> list[float]:
    """Numbers of a float32 vector in the engine's byte order."""
    values = array("f", little_endian)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def shortened(vector: bytes, dimensions: int, *, is_unit: bool) -> bytes:
    """The first `dimensions` numbers of a vector of little-endian float32, scaled to length 1 again where `is_unit`.
    Source: Matryoshka representations (Kusupati et al., 2022)."""
    numbers = vector_of(vector)[:dimensions]
    length = math.hypot(*numbers) if is_unit else 1.0
    return struct.pack(f"<{len(numbers)}f", *(number / (length or 1.0) for number in numbers))


def written(vectors: Sequence[bytes], encoding_format: str | None) -> msgspec.Raw:
    """Vectors of little-endian float32 as OpenAI's list of embeddings. A thousand numbers take a third of a
    millisecond."""
    entries = []
    for index, vector in enumerate(vectors):
        embedding = base64.b64encode(vector).decode() if encoding_format == "base64" else vector_of(vector)
        entries.append({"object": "embedding", "index": index, "embedding": embedding})
    return msgspec.Raw(msgspec.json.encode(entries))


def pair_scores(compared: PairPrompts, numbers: list[list[float]], *, joins_pairs: bool) -> list[float]:
    """The score of each pair of `compared`. `numbers`: one result per prompt, a label's score or a unit vector."""
    if joins_pairs:
        return [score for (score,) in numbers]
    num_first = len(compared.sides()[0].texts)
    return [sum(map(mul, numbers[one], numbers[num_first + other])) for one, other in compared.pairs()]
