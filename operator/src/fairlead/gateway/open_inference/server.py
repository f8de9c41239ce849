"""The gRPC server of a gateway: port, limits, and an orderly end as of the HTTP server."""

import asyncio
import logging

import grpc
import grpc.aio

from fairlead.gateway.app import GatewayApp
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.open_inference.service import InferenceService
from fairlead_common.http.addresses import authority

logger = logging.getLogger(__name__)

CUT_SECONDS = 2.0
"""How long clients have to read their error after a cut."""
_PING_SECONDS = 60.0
"""Silence after which a client is pinged."""
_LEAST_PING_SECONDS = 10.0
"""Least time between pings of a client; more frequent pings cost the connection."""
_IDENTITY_ALONE = 1
"""Compressed messages are refused, as over HTTP: a few bytes may unpack to many."""


class GrpcServer:
    """Serves the protocol: `await serve()` until `stop` was called and running requests have ended."""

    def __init__(self, app: GatewayApp, settings: GatewaySettings, port: int) -> None:
        """Binds the port; 0 = any free port. Raises OSError where the port is taken."""
        self._service = InferenceService(app)
        self._server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=settings.max_connections)
        self._server.add_generic_rpc_handlers(self._service.handlers())
        address = authority(settings.host, port)
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"--grpc-port: {address} is in use already, or no address of this machine") from error
        self._grace_seconds = settings.drain_timeout
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()

    async def serve(self) -> None:
        """Until everything has ended."""
        await self._server.start()
        logger.info("serving the Open Inference Protocol on port %d", self.port)
        await self._stopping.wait()
        self._service.close()
        ending = asyncio.create_task(self._server.stop(self._grace_seconds + CUT_SECONDS))
        cutting = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait((ending, cutting), timeout=self._grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            self._service.cut()
            await self._server.stop(CUT_SECONDS)
            await ending
        finally:
            cutting.cancel()

    def stop(self) -> None:
        """Takes no new requests and finishes running requests; a second call cuts running requests."""
        if self._stopping.is_set():
            self._cut.set()
        self._stopping.set()

    def cut(self) -> None:
        """Takes no new requests and ends running requests: each client gets an error."""
        self._cut.set()
        self.stop()


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    """Of gRPC's core."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_connection_idle_ms", int(1000 * settings.keep_alive_timeout)),
        ("grpc.keepalive_time_ms", int(1000 * _PING_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", int(1000 * _LEAST_PING_SECONDS)),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
    ]
