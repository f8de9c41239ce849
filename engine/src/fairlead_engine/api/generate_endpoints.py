"""The two APIs that generate text, `POST /v1/chat/completions` and `POST /v1/completions`; and an extension of OpenAI's
API, `POST /v1/chat/completions/{id}/inject`: the result of a tool, put into a streamed answer."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from fairlead_common.http.loop_shares import LoopShare
from fairlead_common.openai.image_parts import url_bytes
from fairlead_common.openai.prompts import PromptFields
from fairlead_engine.api.answers.answer_formats import TEXT_ONLY
from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.beam_search import BeamSearch
from fairlead_engine.api.detokenizer import Detokenizer
from fairlead_engine.api.generation import Choice, Generation, OutputReader
from fairlead_engine.api.injectable_answer import InjectableAnswer, TurnsReader, check_injectable
from fairlead_engine.api.prompt_endpoints import PromptEndpoint
from fairlead_engine.api.prompts import chat_fields
from fairlead_engine.api.reply import ChatReply, CompletionReply, Reply
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.sampling import chat_sampling, completion_sampling, with_grammar
from fairlead_engine.api.schemas import ChatRequest, CompletionRequest
from fairlead_engine.api.served_model import ServedModel
from fairlead_engine.api.service import Endpoint
from fairlead_engine.api.structured_output import wish_of
from fairlead_engine.api.tool_use import reasoning_has_begun, tool_use
from fairlead_engine.errors import RequestError
from fairlead_engine.host.exchange import Exchange
from fairlead_engine.host.refusals import NotFound
from fairlead_engine.images.image import DecodedImage
from fairlead_engine.types import Injectable, SamplingParams, ThinkingBudget

PATH_INJECT = "/v1/chat/completions/{id}/inject"
Generating = TypeVar("Generating", ChatRequest, CompletionRequest)


class GenerateEndpoint(PromptEndpoint[Generating]):
    """Common part of chats and text completions."""

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

    async def constrained(
        self, sampling: SamplingParams, request: Generating, prompts: list[list[int]], model: ServedModel
    ) -> SamplingParams:
        wish, use, prompt = wish_of(request), None, None
        if isinstance(request, ChatRequest):
            use, prompt = tool_use(request, model.formats), prompts[0]
        if wish is None and (use is None or not use.is_kept_to):
            return sampling
        job = model.grammar_job(wish, use, prompt)
        kept_to = await self._service.grammars.grammar(await self._service.prepared(job.size, job.bare))
        return sampling if kept_to is None else with_grammar(sampling, kept_to)

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
        if request.injectable:
            check_injectable(request, use, model, num_processes=self._service.num_processes)
        must_end = request.thinking_token_budget is not None and not request.best_effort
        if must_end and await self._thinking_markers(model) is None:
            raise RequestError(
                "thinking_token_budget",
                "thinking_token_budget is not supported by this model as it is served: where its reasoning begins and "
                "ends is not told by tokens of their own; leave it out, or serve it with reasoning-parser set",
                "unsupported_value",
            )

    async def keep_prefixes(self, request: ChatRequest, prompts: list[list[int]]) -> tuple[tuple[float, int], ...]:
        [ids], kept = prompts, []
        for seconds, number in request.keep_prefixes():
            chat = msgspec.structs.replace(chat_fields(request), messages=request.messages[:number])
            chat = msgspec.structs.replace(chat, add_generation_prompt=False, continue_final_message=None)
            beginning = ids
            with suppress(RequestError):  # of a template that wants more messages
                [(_, prompt)] = await self._service.prompts.prompts(chat)
                beginning = prompt.token_ids
            begins = beginning[:-1] == ids[: len(beginning) - 1]  # its last token may be one with what follows
            kept.append((seconds, len(beginning if begins else ids)))
        return tuple(kept)

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

    async def constrained(
        self, sampling: SamplingParams, request: ChatRequest, prompts: list[list[int]], model: ServedModel
    ) -> SamplingParams:
        sampling = await super().constrained(sampling, request, prompts, model)
        sampling = await self._without_calls(sampling, request, model)
        if request.thinking_token_budget is None or (markers := await self._thinking_markers(model)) is None:
            return sampling
        has_begun = reasoning_has_begun(prompts[0], model.formats, model.vocabulary)
        budget = ThinkingBudget(request.thinking_token_budget, *markers, has_begun)
        return msgspec.structs.replace(sampling, thinking=budget)

    async def _without_calls(
        self, sampling: SamplingParams, request: ChatRequest, model: ServedModel
    ) -> SamplingParams:
        """Rules the beginning of a call out where the model is told of tools and may call none, if a token of its own
        begins one."""
        may_call = "none" not in (request.tool_choice, request.function_call) or not (
            request.tools or request.functions
        )
        if may_call or request.use_beam_search or (tools := model.formats.tools) is None:
            return sampling
        [begin] = await self._service.prompts.encoded([tools.shape.begin])
        if not begin or begin[0] not in model.tokenizer.backend.get_added_tokens_decoder():
            return sampling
        return msgspec.structs.replace(sampling, bad_words=(*sampling.bad_words, (begin[0],)))

    async def _thinking_markers(self, model: ServedModel) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if (thought := model.formats.thought) is None:
            return None
        return model.thinking_markers(*await self._service.prompts.encoded([thought.begin, thought.end]))

    def reader(
        self, request: ChatRequest, prompt: list[int], sampling: SamplingParams, model: ServedModel
    ) -> OutputReader:
        use, formats = tool_use(request, model.formats), model.formats
        if use is None and formats.answer is None:
            formats = formats._replace(tools=None)
        if formats == TEXT_ONLY:
            return super().reader(request, prompt, sampling, model)

        def turn(before: list[int]) -> AnswerReader:
            skips = request.skip_special_tokens is not False
            return AnswerReader(
                Detokenizer(
                    model.vocabulary,
                    sampling,
                    before,
                    skip_special_tokens=skips,
                    shown=model.marker_ids,
                    notes_begins=formats.thought is not None,
                ),
                formats,
                {} if use is None else use.parameters,
                has_begun_reasoning=reasoning_has_begun(before, formats, model.vocabulary),
                most_calls=0 if use is None else None if use.are_many else 1,
            )

        return TurnsReader(turn, prompt) if request.injectable else turn(prompt)

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
        return request.prompt_fields

    def reply(
        self, request: CompletionRequest, model: ServedModel, generation: Generation, request_id: str
    ) -> CompletionReply:
        return CompletionReply(generation, model.vocabulary, request, reply_id=f"cmpl-{request_id}")


class InjectRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What a tool has answered."""

    tool_call_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="As the stream has told it")]
    content: Annotated[str, msgspec.Meta(description="The result, as a message of the role `tool` would have it")]
    model: Annotated[
        str | None, msgspec.Meta(description="That of the request, for gateways; nobody else looks at it")
    ] = None


class InjectReply(msgspec.Struct, frozen=True):
    """It is in the answer."""

    id: str
    """The answer's."""
    tool_call_id: str
    num_tokens: int
    """That the model was given for it."""
    object: str = "chat.completion.injection"


class InjectionEndpoint(Endpoint):
    """Answers once the result is injected, or with the reason why the result cannot be injected."""

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.body()
        request = decode(body, InjectRequest, self._service.unknown_fields)
        model = self._service.model()
        answer_id = exchange.scope["path"].split("/")[-2]  # as `PATH_INJECT` has it
        answer = self._service.injectable_answers.get(answer_id)
        if answer is None:
            problem = f"no injectable answer {answer_id!r} is being generated here: it has ended, or there was none"
            raise NotFound("id", problem, "answer_not_found")
        answer.check_call(request.tool_call_id)
        token_ids = await exchange.while_connected(
            answer.tokens(request.tool_call_id, request.content, self._service.prompts, model.info.max_model_len)
        )
        await exchange.while_connected(answer.inject(request.tool_call_id, token_ids))
        reply = InjectReply(answer_id, request.tool_call_id, len(token_ids))
        await exchange.send_json(msgspec.json.encode(reply))
