"""The way of a request that a model computes: parse → check → tokenise → run → reply; and the two APIs that generate.

`POST /v1/chat/completions` and `POST /v1/completions` are here; those that read something off prompts derive from
`reading_endpoint.py`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.images.decoded_image import DecodedImage
from fairlead_engine.server.answers.answer_formats import TEXT_ONLY
from fairlead_engine.server.answers.reader import AnswerReader
from fairlead_engine.server.beam_search import BeamSearch, check_beams
from fairlead_engine.server.detokenizer import Detokenizer
from fairlead_engine.server.dispatches import Dispatch
from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.generation import Choice, Generation, OutputReader
from fairlead_engine.server.grammar_job import GrammarJob
from fairlead_engine.server.injectable_answer import InjectableAnswer, TurnsReader, check_injectable
from fairlead_engine.server.prompts import (
    chat_fields,
    check_effort,
    checked_prompts,
    completion_fields,
    given_prompts,
)
from fairlead_engine.server.reply import ChatReply, CompletionReply, Reply
from fairlead_engine.server.request_body import decode
from fairlead_engine.server.sampling import chat_sampling, completion_sampling, with_grammar
from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, GenerationRequest, PromptRequest, check
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.server.service import Service
from fairlead_engine.server.structured_output import wish_of
from fairlead_engine.server.tool_use import ToolUse, reasoning_has_begun, tool_use
from fairlead_engine.types import Grammar, Injectable, Kind, Pooling, Reading, SamplingParams, ThinkingBudget
from fairlead_protocol.image_parts import url_bytes
from fairlead_protocol.loop_shares import LoopShare
from fairlead_protocol.messages import HEADER_DISPATCH
from fairlead_protocol.prompts import EncodedPrompt, PromptFields

Request = TypeVar("Request", bound=PromptRequest)
Generating = TypeVar("Generating", ChatRequest, CompletionRequest)


class PromptEndpoint(ABC, Generic[Request]):
    """The way of one request; the APIs differ in the steps below."""

    schema: type[Request]
    kind = Kind.GENERATE

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request. The client's leaving ends it wherever it is."""
        arrival_time = time.time()
        with self._service.stream.dispatches.arrived(exchange.headers.get(HEADER_DISPATCH)) as dispatch:
            self._service.lifecycle.check_accepting()
            await exchange.while_connected(self._answer(exchange, await exchange.body(), arrival_time, dispatch))

    async def _answer(self, exchange: Exchange, body: bytes, arrival_time: float, dispatch: Dispatch) -> None:
        with self._service.lifecycle.admitted() as admission:
            model = self._service.model()
            with admission.stoppable():
                await self._service.pacer.pace(len(body))
                request = decode(body, self.schema)
                num_bytes, body = len(body), b""  # an answer may take long, and a body be large
                model.adapter(request.model)  # 404 here
                model.check_kind(self.kind)
                check(request)
                await self.check(request, model)
                sampling = await self.sampling(request, model)
                if isinstance(request, GenerationRequest):
                    check_beams(request, sampling.max_tokens)
                self._service.check_choices(request, sampling)
                image_bytes = self.image_bytes(request)
                size = (num_bytes - image_bytes) * request.rendered_factor
                images = await self.images(request, model)
                exchange.held.release()  # not before: of a chat with images the body is nearly all there is to hold
                encoded = await self._prompts(request, model, images, size)
                prompts = [prompt.token_ids for prompt in encoded]
                self._service.check_scores(request, prompts, sampling)
                if (kept_to := await self.grammar(request, prompts, model)) is not None:
                    sampling = with_grammar(sampling, kept_to)
                if (budget := await self.thinking(request, prompts, model)) is not None:
                    sampling = msgspec.structs.replace(sampling, thinking=budget)
                share = self._service.shares.stream()
                choices = await self._service.choices(
                    request,
                    encoded,
                    sampling,
                    pooling=self.pooling(request, model),
                    reading=self.reading(model),
                    make_reader=lambda prompt: self.reader(request, prompt, sampling, model),
                    request_id=exchange.request_id,
                    arrival_time=arrival_time,
                    comes_from_gateway=dispatch.gateway is not None,
                    injectable=self.injectable(request, prompts, model),
                    images=images,
                    share=share,
                )
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
        given = await prepared(size, lambda: given_prompts(fields, request, model, images))
        prompts = await self._service.prompts.prompts(fields) if given is None else given
        return await prepared(size, lambda: checked_prompts(prompts, fields, request, model, images))

    async def check(self, request: Request, model: ServedModel) -> None:
        """Raises `RequestError` for what this model cannot be asked for, and can be told before a prompt is made."""
        return

    def image_bytes(self, request: Request) -> int:
        """How much of it is images."""
        return 0

    async def images(self, request: Request, model: ServedModel) -> list[DecodedImage]:
        """What it shows the model; raises `RequestError`."""
        return []

    async def grammar(self, request: Request, prompts: list[list[int]], model: ServedModel) -> Grammar | None:
        """What the answer keeps to, if anything; raises `RequestError`."""
        return None

    async def thinking(self, request: Request, prompts: list[list[int]], model: ServedModel) -> ThinkingBudget | None:
        """How long answers may reason; None = as long as they want to."""
        return None

    def generation(
        self, request: Request, choices: list[Choice], on_sent: Callable[[int], None], share: LoopShare
    ) -> Generation:
        """What runs them; raises `RequestError`."""
        return Generation(self._service.client, choices, self._service.metrics, on_sent, share)

    def pooling(self, request: Request, model: ServedModel) -> Pooling | None:
        """What vector is made of the hidden states; None = text is generated."""
        return None

    def injectable(self, request: Request, prompts: list[list[int]], model: ServedModel) -> Injectable | None:
        """Where something may be put into its answer; None = nothing is."""
        return None

    def reading(self, model: ServedModel) -> Reading:
        """What is made of that vector."""
        return Reading.UNIT

    @abstractmethod
    async def sampling(self, request: Request, model: ServedModel) -> SamplingParams:
        """How to sample; raises `RequestError`."""

    @abstractmethod
    def fields(self, request: Request, model: ServedModel) -> PromptFields:
        """What decides its prompts; raises `RequestError`."""

    @abstractmethod
    def reader(self, request: Request, prompt: list[int], sampling: SamplingParams, model: ServedModel) -> OutputReader:
        """What reads the outputs of one of its sequences."""

    @abstractmethod
    async def send(self, exchange: Exchange, request: Request, model: ServedModel, generation: Generation) -> None:
        """Answers with what comes."""


class GenerateEndpoint(PromptEndpoint[Generating]):
    """What chats and text completions have in common."""

    def reader(
        self, request: Generating, prompt: list[int], sampling: SamplingParams, model: ServedModel
    ) -> OutputReader:
        skips = request.skip_special_tokens is not False
        has_prompt = isinstance(request, CompletionRequest) and bool(request.echo)
        return Detokenizer(model.vocabulary, sampling, prompt, skip_special_tokens=skips, follows_prompt=has_prompt)

    def generation(
        self, request: Generating, choices: list[Choice], on_sent: Callable[[int], None], share: LoopShare
    ) -> Generation:
        client, metrics = self._service.client, self._service.metrics
        if request.use_beam_search:
            return BeamSearch(client, choices, metrics, on_sent, request=request, info=client.info)
        return Generation(client, choices, metrics, on_sent, share)

    async def made(self, job: GrammarJob) -> Grammar | None:
        """What an answer keeps to; raises `RequestError`."""
        return await self._service.grammars.grammar(await self._service.prepared(job.size, job.bare))

    async def send(self, exchange: Exchange, request: Generating, model: ServedModel, generation: Generation) -> None:
        reply = self.reply(request, model, generation, exchange.request_id)
        if request.stream:
            await exchange.send_events(reply.events(exchange.writer), headers=reply.headers())
        else:
            await exchange.send_json(await reply.whole(), headers=reply.headers())

    @abstractmethod
    def reply(
        self, request: Generating, model: ServedModel, generation: Generation, request_id: str
    ) -> Reply[Generating]:
        """The answer's shape."""


class ChatEndpoint(GenerateEndpoint[ChatRequest]):
    """`POST /v1/chat/completions`."""

    schema = ChatRequest

    async def sampling(self, request: ChatRequest, model: ServedModel) -> SamplingParams:
        return await self._service.prompts.sampling(partial(chat_sampling, request, model.sampling_defaults))

    def fields(self, request: ChatRequest, model: ServedModel) -> PromptFields:
        return chat_fields(request)

    def image_bytes(self, request: ChatRequest) -> int:
        return url_bytes(request.messages)

    async def images(self, request: ChatRequest, model: ServedModel) -> list[DecodedImage]:
        return await self._service.images.load(request.messages, model.info, request.num_each)

    async def check(self, request: ChatRequest, model: ServedModel) -> None:
        use = tool_use(request, model.formats)
        check_effort(request, model)
        if request.injectable:
            check_injectable(request, use, model, num_processes=self._service.num_processes)
        if request.thinking_token_budget is not None and await self._thinking_markers(model) is None:
            raise RequestError(
                "thinking_token_budget",
                "thinking_token_budget is not supported by this model as it is served: where its reasoning begins and "
                "ends is not told by tokens of their own; leave it out, or serve it with reasoning-parser set",
                "unsupported_value",
            )

    def injectable(self, request: ChatRequest, prompts: list[list[int]], model: ServedModel) -> Injectable | None:
        if not request.injectable or model.injectable is None:
            return None
        begins_inside = reasoning_has_begun(prompts[0], model.formats, model.vocabulary)
        return msgspec.structs.replace(model.injectable, begins_inside=begins_inside)

    async def send(self, exchange: Exchange, request: ChatRequest, model: ServedModel, generation: Generation) -> None:
        if not request.injectable:
            await super().send(exchange, request, model, generation)
            return
        [choice] = generation.choices
        assert isinstance(choice.reader, TurnsReader)
        answer_id, answers = choice.reader.answer_id, self._service.injectable_answers
        answers[answer_id] = InjectableAnswer(request, choice.request, choice.reader, self._service.client)
        try:
            await super().send(exchange, request, model, generation)
        finally:
            del answers[answer_id]

    async def thinking(
        self, request: ChatRequest, prompts: list[list[int]], model: ServedModel
    ) -> ThinkingBudget | None:
        if request.thinking_token_budget is None or (markers := await self._thinking_markers(model)) is None:
            return None
        has_begun = reasoning_has_begun(prompts[0], model.formats, model.vocabulary)
        return ThinkingBudget(request.thinking_token_budget, *markers, has_begun)

    async def _thinking_markers(self, model: ServedModel) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if (thought := model.formats.thought) is None:
            return None
        return model.thinking_markers(*await self._service.prompts.encoded([thought.begin, thought.end]))

    async def grammar(self, request: ChatRequest, prompts: list[list[int]], model: ServedModel) -> Grammar | None:
        wish, use = wish_of(request), tool_use(request, model.formats)
        if wish is None and (use is None or not use.is_kept_to):
            return None
        return await self.made(model.grammar_job(wish, use, prompts[0]))

    def reader(
        self, request: ChatRequest, prompt: list[int], sampling: SamplingParams, model: ServedModel
    ) -> OutputReader:
        use, formats = tool_use(request, model.formats), model.formats
        if use is None and formats.answer is None:
            formats = formats._replace(tools=None)
        if formats == TEXT_ONLY:
            return super().reader(request, prompt, sampling, model)
        if request.injectable:
            return TurnsReader(lambda before: self._answer_reader(request, before, sampling, model, use), prompt)
        return self._answer_reader(request, prompt, sampling, model, use)

    def _answer_reader(
        self,
        request: ChatRequest,
        prompt: list[int],
        sampling: SamplingParams,
        model: ServedModel,
        use: ToolUse | None,
    ) -> AnswerReader:
        formats = model.formats
        if use is None and formats.answer is None:
            formats = formats._replace(tools=None)
        detokenizer = Detokenizer(
            model.vocabulary,
            sampling,
            prompt,
            skip_special_tokens=request.skip_special_tokens is not False,
            shown=model.marker_ids,
        )
        return AnswerReader(
            detokenizer,
            formats,
            {} if use is None else use.parameters,
            has_begun_reasoning=reasoning_has_begun(prompt, formats, model.vocabulary),
            most_calls=0 if use is None else None if use.are_many else 1,
        )

    def reply(self, request: ChatRequest, model: ServedModel, generation: Generation, request_id: str) -> ChatReply:
        reader = generation.choices[0].reader
        reply_id = reader.answer_id if isinstance(reader, TurnsReader) else f"chatcmpl-{request_id}"
        return ChatReply(generation, model.vocabulary, request, reply_id=reply_id)


class CompletionEndpoint(GenerateEndpoint[CompletionRequest]):
    """`POST /v1/completions`."""

    schema = CompletionRequest

    async def sampling(self, request: CompletionRequest, model: ServedModel) -> SamplingParams:
        return await self._service.prompts.sampling(partial(completion_sampling, request, model.sampling_defaults))

    def fields(self, request: CompletionRequest, model: ServedModel) -> PromptFields:
        return completion_fields(request)

    async def grammar(self, request: CompletionRequest, prompts: list[list[int]], model: ServedModel) -> Grammar | None:
        wish = wish_of(request)
        return None if wish is None else await self.made(model.grammar_job(wish, None, None))

    def reply(
        self, request: CompletionRequest, model: ServedModel, generation: Generation, request_id: str
    ) -> CompletionReply:
        return CompletionReply(generation, model.vocabulary, request, reply_id=f"cmpl-{request_id}")


def _facts(request: PromptRequest, generation: Generation, arrival_time: float) -> dict[str, Any]:
    """What the request's log line says about it."""
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
