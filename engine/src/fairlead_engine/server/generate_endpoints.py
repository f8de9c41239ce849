"""`POST /v1/chat/completions` and `POST /v1/completions`: parse → check → tokenise → generate → reply."""

import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

from fairlead_engine.server.dispatches import Dispatch
from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.generation import Generation
from fairlead_engine.server.prompts import chat_prompts, completion_prompts
from fairlead_engine.server.reply import ChatReply, CompletionReply, Reply
from fairlead_engine.server.request_body import decode
from fairlead_engine.server.sampling import chat_sampling, completion_sampling
from fairlead_engine.server.schemas import ChatRequest, CompletionRequest, check
from fairlead_engine.server.served_model import ServedModel
from fairlead_engine.server.service import Service
from fairlead_engine.types import SamplingParams
from fairlead_protocol.messages import HEADER_DISPATCH

Request = TypeVar("Request", ChatRequest, CompletionRequest)


class GenerateEndpoint(ABC, Generic[Request]):
    """The way of a generating request; the two APIs differ in the four steps below."""

    schema: type[Request]

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request. The client's leaving ends it wherever it is."""
        arrival_time = time.time()
        with self._service.stream.dispatches.arrived(exchange.headers.get(HEADER_DISPATCH)) as dispatch:
            self._service.lifecycle.check_accepting()
            body = await exchange.body()
            await exchange.while_connected(self._answer(exchange, body, arrival_time, dispatch))

    async def _answer(self, exchange: Exchange, body: bytes, arrival_time: float, dispatch: Dispatch) -> None:
        with self._service.lifecycle.admitted() as admission:
            model = self._service.model()
            await self._service.pacer.pace(len(body))
            request = decode(body, self.schema)
            exchange.held.release()
            model.adapter(request.model)  # 404 here
            check(request)
            sampling = self.sampling(request, model)
            self._service.check_choices(request, sampling)
            size = len(body) * request.rendered_factor
            prompts = await self._service.prepared(size, lambda: self.prompts(request, model))
            self._service.check_scores(request, prompts, sampling)
            choices = self._service.choices(
                request,
                prompts,
                sampling,
                request_id=exchange.request_id,
                arrival_time=arrival_time,
                comes_from_gateway=dispatch.gateway is not None,
            )
            service = self._service
            on_sent = partial(service.stream.sent, dispatch=dispatch)
            async with Generation(service.client, choices, service.metrics, on_sent) as generation:
                admission.attach(generation.stop)
                try:
                    await generation.started()
                    await self._send(exchange, request, self.reply(request, model, generation, exchange.request_id))
                finally:
                    exchange.facts.update(_facts(request, generation, arrival_time))

    async def _send(self, exchange: Exchange, request: Request, reply: Reply[Request]) -> None:
        if request.stream:
            await exchange.send_events(reply.events(), headers=reply.headers())
        else:
            await exchange.send_json(await reply.whole(), headers=reply.headers())

    @abstractmethod
    def sampling(self, request: Request, model: ServedModel) -> SamplingParams:
        """How to sample; raises `RequestError`."""

    @abstractmethod
    def prompts(self, request: Request, model: ServedModel) -> list[list[int]]:
        """Token ids of every prompt; raises `RequestError`. May run in a thread."""

    @abstractmethod
    def reply(self, request: Request, model: ServedModel, generation: Generation, request_id: str) -> Reply[Request]:
        """The answer's shape."""


class ChatEndpoint(GenerateEndpoint[ChatRequest]):
    """`POST /v1/chat/completions`."""

    schema = ChatRequest

    def sampling(self, request: ChatRequest, model: ServedModel) -> SamplingParams:
        return chat_sampling(request, model.sampling_defaults)

    def prompts(self, request: ChatRequest, model: ServedModel) -> list[list[int]]:
        return chat_prompts(request, model)

    def reply(self, request: ChatRequest, model: ServedModel, generation: Generation, request_id: str) -> ChatReply:
        return ChatReply(generation, model.vocabulary, request, reply_id=f"chatcmpl-{request_id}")


class CompletionEndpoint(GenerateEndpoint[CompletionRequest]):
    """`POST /v1/completions`."""

    schema = CompletionRequest

    def sampling(self, request: CompletionRequest, model: ServedModel) -> SamplingParams:
        return completion_sampling(request, model.sampling_defaults)

    def prompts(self, request: CompletionRequest, model: ServedModel) -> list[list[int]]:
        return completion_prompts(request, model)

    def reply(
        self, request: CompletionRequest, model: ServedModel, generation: Generation, request_id: str
    ) -> CompletionReply:
        return CompletionReply(generation, model.vocabulary, request, reply_id=f"cmpl-{request_id}")


def _facts(request: Request, generation: Generation, arrival_time: float) -> dict[str, Any]:
    """What the request's log line says about it."""
    first = min((choice.first_token_time for choice in generation.choices if choice.first_token_time), default=None)
    reasons = {str(choice.finish_reason) for choice in generation.choices if choice.finish_reason}
    return {
        "model": request.model,
        "stream": bool(request.stream),
        "num_choices": len(generation.choices) if len(generation.choices) > 1 else None,
        "num_prompt_tokens": generation.num_prompt_tokens,
        "num_cached_tokens": generation.num_cached_tokens,
        "num_completion_tokens": generation.num_output_tokens,
        "ttft_seconds": round(first - arrival_time, 6) if first else None,
        "finish_reason": ",".join(sorted(reasons)) or None,
    }
