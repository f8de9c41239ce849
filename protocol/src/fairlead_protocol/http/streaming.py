"""Parts of a streamed answer, written straight to the connection: an ASGI extension of our server.

ASGI's `send` is awaited, so a task has to be woken for each part; an answer that grows by a token at a time, on
hundreds of connections at once, would spend more on that than on the token. An application finds the writer in its
scope's `extensions`, and goes back to `send` whenever it is not ready.
"""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

STREAM_WRITER = "fairlead.stream_writer"
"""Key in `extensions` of an HTTP scope."""


class StreamWriter:
    """Of one request. Only for an answer whose head was sent without a Content-Length, and of which more is to come."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    @property
    def is_ready(self) -> bool:
        """Whether a part may be written: the client is there and reads what it is sent."""
        return not (self._flow.write_paused or self._transport.is_closing())

    def write(self, part: bytes) -> None:
        """Writes a part that is not empty, as a chunk of its own."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
