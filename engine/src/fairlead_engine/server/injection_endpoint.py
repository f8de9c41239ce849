"""`POST /v1/chat/completions/{id}/inject`: the result of a tool, put into an answer while it is streamed.

An extension of OpenAI's API, for requests that were sent with `injectable`.
"""

from typing import Annotated

import msgspec

from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.refusals import NotFound
from fairlead_engine.server.request_body import decode
from fairlead_engine.server.service import Service

PATH_INJECT = "/v1/chat/completions/{id}/inject"


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


class InjectionEndpoint:
    """Answers when the result is in its place, or why it never will be."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one."""
        body = await exchange.body()
        request = decode(body, InjectRequest)
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
