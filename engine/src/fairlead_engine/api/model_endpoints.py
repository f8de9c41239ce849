"""Endpoints about the model rather than for generating: names, tokenizer, limits, and adapters at run time."""

from collections.abc import Awaitable
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead_common.wire.adapters import UnknownAdapter, with_adapter
from fairlead_engine.api.prompts import tokenize_fields
from fairlead_engine.api.request_body import decode
from fairlead_engine.api.schemas import DetokenizeRequest, TokenizeRequest
from fairlead_engine.api.served_model import ServedModel
from fairlead_engine.api.service import Endpoint
from fairlead_engine.errors import AdapterError, RequestError
from fairlead_engine.host.exchange import EXCHANGE, Exchange
from fairlead_engine.host.refusals import NotFound


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as `/v1/models` lists it, with vLLM's `max_model_len`."""

    id: str
    object: str = "model"
    created: int
    """Unix time at which the model was loaded."""
    owned_by: str = "fairlead"
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    capabilities: list[str]
    """As `ModelBrief` has them."""
    parent: str | None = None
    """Name of an adapter's model; None = no adapter."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of `/v1/models`."""

    object: str = "list"
    data: list[ModelCard]


class TokensReply(msgspec.Struct, frozen=True):
    """Reply of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None
    """The tokens as the vocabulary writes them; null unless asked for."""


class TextReply(msgspec.Struct, frozen=True):
    """Reply of `/detokenize`."""

    prompt: str


class ModelEndpoints(Endpoint):
    """`/v1/models`, `/fairlead/v1/model`, `/tokenize` and `/detokenize`."""

    async def list_models(self, request: Request) -> Response:
        """The one model this engine serves, by itself and with each of its adapters."""
        return _told(request, _list(self._service.model()))

    async def get_model(self, id: str, request: Request) -> Response:
        """The model of this name."""
        model = self._service.model()
        model.adapter(id)
        return _told(request, _card(model, id))

    async def protocol_model(self) -> Response:
        """What a gateway needs to prepare prompts for this engine."""
        return Response(self._service.model().protocol_json, media_type="application/json")

    async def tokenize(self, exchange: Exchange) -> None:
        """`POST /tokenize`, in vLLM's shape."""
        body = await exchange.body()
        await exchange.while_connected(self._tokenize(exchange, body))

    async def question(self, exchange: Exchange) -> None:
        """What another dialect asks about models: `/v1/models`, translated."""
        path = exchange.translate(await exchange.body(), self._service.unknown_fields)
        name = path.removeprefix("/v1/models").removeprefix("/")
        model = self._service.model()
        if name:
            model.adapter(name)  # 404 here
        reply = _card(model, name) if name else _list(model)
        await exchange.send_json(msgspec.json.encode(reply))

    async def _tokenize(self, exchange: Exchange, body: bytes) -> None:
        model = self._service.model()
        await self._service.pacer.pace(len(body))
        request = decode(body, TokenizeRequest, self._service.unknown_fields)
        model.adapter(request.model or model.name)
        images = await self._service.images.load(request.messages or (), model.info)
        [(_, (token_ids, _))] = await self._service.prompts.prompts(tokenize_fields(request))
        token_ids = model.seen(token_ids, images)
        texts = None
        if request.return_token_strs:
            texts = [model.tokenizer.backend.id_to_token(token_id) for token_id in token_ids]
        reply = TokensReply(len(token_ids), model.info.max_model_len, token_ids, texts)
        await exchange.send_json(msgspec.json.encode(reply))

    async def detokenize(self, exchange: Exchange) -> None:
        """`POST /detokenize`, in vLLM's shape; special tokens are shown."""
        body = await exchange.body()
        model = self._service.model()
        await self._service.pacer.pace(len(body))
        request = decode(body, DetokenizeRequest, self._service.unknown_fields)
        model.adapter(request.model or model.name)
        if len(request.tokens) > (longest := model.info.max_model_len):
            message = f"tokens has {len(request.tokens)} ids, and this model's texts at most {longest}; send fewer"
            raise RequestError("tokens", message, "context_length_exceeded")
        model.check_token_ids(request.tokens, "tokens")
        text = await exchange.while_connected(self._service.prompts.text(request.tokens))
        await exchange.send_json(msgspec.json.encode(TextReply(text)))


def _told(request: Request, reply: ModelList | ModelCard) -> Response:
    """In the dialect of the request."""
    exchange: Exchange = request.scope[EXCHANGE]
    status, body = 200, msgspec.json.encode(reply)
    if exchange.translation is not None:
        status, body = exchange.translation.answer(status, body, exchange.request_id)
    return Response(body, status, media_type="application/json")


def _list(model: ServedModel) -> ModelList:
    names = [model.name, *(with_adapter(model.name, adapter) for adapter in model.adapters)]
    return ModelList(data=[_card(model, name) for name in names])


def _card(model: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=model.created,
        max_model_len=model.info.max_model_len,
        capabilities=model.capabilities,
        parent=None if name == model.name else model.name,
    )


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="What stands behind the colon")]


class LoadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/load_lora_adapter`."""

    lora_name: _Name
    lora_path: Annotated[
        str, msgspec.Meta(min_length=1, max_length=4096, description="Its folder, below that of `--adapter-folder`")
    ]


class UnloadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: _Name


class AdapterReply(msgspec.Struct, frozen=True):
    """What became of an adapter."""

    id: str
    """Value of requests' `model` for this adapter."""
    status: str
    """`loaded` or `unloaded`."""


class AdapterEndpoints(Endpoint):
    async def load(self, exchange: Exchange) -> None:
        """Returns when requests may ask for the adapter; steps do not wait meanwhile."""
        request = decode(await exchange.body(), LoadAdapterRequest, self._service.unknown_fields)
        reply = AdapterReply(with_adapter(self._service.model().name, request.lora_name), "loaded")
        work = self._service.client.load_adapter(request.lora_name, request.lora_path)
        await self._done(exchange, work, "lora_path", reply)

    async def unload(self, exchange: Exchange) -> None:
        """Running requests keep the adapter until their end."""
        request = decode(await exchange.body(), UnloadAdapterRequest, self._service.unknown_fields)
        model = self._service.model()
        if request.lora_name not in model.adapters:
            error = UnknownAdapter(request.lora_name, model.adapters)
            raise NotFound("lora_name", error.message, error.code)
        reply = AdapterReply(with_adapter(model.name, request.lora_name), "unloaded")
        await self._done(exchange, self._service.client.unload_adapter(request.lora_name), "lora_name", reply)

    async def _done(self, exchange: Exchange, work: Awaitable[None], field: str, reply: AdapterReply) -> None:
        """Awaits the work and answers. Raises `RequestError`, about `field`."""
        try:
            await work
        except AdapterError as error:
            raise RequestError(field, error.message, "adapter_invalid") from error
        await exchange.send_json(msgspec.json.encode(reply))
