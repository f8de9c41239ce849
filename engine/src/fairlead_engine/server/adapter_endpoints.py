"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM names them: adapters come and go at run time.

Only from below `--adapter-folder`. Any HTTP process of an engine may be asked.
"""

from typing import Annotated

import msgspec

from fairlead_engine.errors import AdapterError, RequestError
from fairlead_engine.server.exchange import Exchange
from fairlead_engine.server.refusals import NotFound
from fairlead_engine.server.request_body import decode
from fairlead_engine.server.service import Service
from fairlead_protocol.adapters import UnknownAdapter, with_adapter

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
    """What requests write in `model` to ask for it."""
    status: str
    """`loaded` or `unloaded`."""


class AdapterEndpoints:
    """Loading and unloading."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def load(self, exchange: Exchange) -> None:
        """Returns when requests may ask for it; nobody's step waits for that."""
        request = decode(await exchange.body(), LoadAdapterRequest)
        model = self._service.model()
        try:
            await self._service.client.load_adapter(request.lora_name, request.lora_path)
        except AdapterError as error:
            raise RequestError("lora_path", error.message, "adapter_invalid") from error
        await self._reply(exchange, with_adapter(model.name, request.lora_name), "loaded")

    async def unload(self, exchange: Exchange) -> None:
        """Requests that are there already are finished with it."""
        request = decode(await exchange.body(), UnloadAdapterRequest)
        model = self._service.model()
        if request.lora_name not in model.adapters:
            error = UnknownAdapter(request.lora_name, model.adapters)
            raise NotFound("lora_name", error.message, error.code)
        try:
            await self._service.client.unload_adapter(request.lora_name)
        except AdapterError as error:
            raise RequestError("lora_name", error.message, "adapter_invalid") from error
        await self._reply(exchange, with_adapter(model.name, request.lora_name), "unloaded")

    async def _reply(self, exchange: Exchange, name: str, status: str) -> None:
        await exchange.send_json(msgspec.json.encode(AdapterReply(name, status)))
