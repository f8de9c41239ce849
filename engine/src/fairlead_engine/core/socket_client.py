"""An engine client over a ZeroMQ socket: of a core that another process has started, or by `ProcessClient` its own.

Messages are msgspec structs as msgpack over a ZeroMQ pair on a Unix socket, which the client binds.
"""

import asyncio

import msgspec
import zmq
import zmq.asyncio

from fairlead_engine.core.channel_client import ChannelClient
from fairlead_engine.core.messages import Command, Died, Failed, Reply


class SocketClient(ChannelClient):
    """Talks to a core that will connect to `address`. Whoever has started the core says when it is lost."""

    _hears_of_every_step = False

    def __init__(self, address: str = "") -> None:
        super().__init__()
        self._address = address
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

    def lost(self, message: str) -> None:
        """The core is gone: every running request ends with `EngineDead`."""
        self._die(message)

    async def _launch(self) -> None:
        self._bind(self._address)

    def _bind(self, address: str) -> "asyncio.Task[None]":
        """Returns what takes in the core's replies, until its last words."""
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._receiving = asyncio.create_task(self._receive(self._socket))
        return self._receiving

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        reply: Reply | None = None
        while not isinstance(reply, Failed | Died):
            reply = self._decoder.decode(await socket.recv())
            self._handle(reply)

    def _transmit(self, command: Command) -> None:
        assert self._socket is not None
        self._socket.send(self._encoder.encode(command))

    async def _shut_down(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
            self._receiving = None
        if self._socket is not None and self._context is not None:
            self._socket.close(linger=0)
            self._context.term()
            self._socket = self._context = None
