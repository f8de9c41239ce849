"""Requests in other dialects (`fairlead_common.openai.translate`)."""

from collections.abc import Mapping

from fairlead_engine.api.service import Endpoint, Service
from fairlead_engine.host.exchange import Exchange, Handler


class TranslatedEndpoint(Endpoint):
    """Has requests answered by the endpoints of their paths in the OpenAI form."""

    def __init__(self, service: Service, handlers: Mapping[str, Handler]) -> None:
        """`handlers`: by path."""
        super().__init__(service)
        self._handlers = handlers

    async def __call__(self, exchange: Exchange) -> None:
        self._service.lifecycle.check_accepting()
        body = await exchange.body()
        await self._service.pacer.pace(len(body))
        path = exchange.translate(body, self._service.unknown_fields)
        del body  # answers may take long
        await self._handlers[path](exchange)
