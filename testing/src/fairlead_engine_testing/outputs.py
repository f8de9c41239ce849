"""The outputs of one request as an iterator, for tests of engine clients."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from fairlead_engine.core.client import EngineClient
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.types import EngineRequest, SequenceOutput


async def outputs_of(
    client: EngineClient, request: EngineRequest, on_sent: Callable[[int], object] | None = None
) -> AsyncGenerator[SequenceOutput, None]:
    """Runs one request from the first `anext` on, and aborts it when closed. Outputs of several steps come merged to a
    slow reader. `on_sent` is called with the command's number. Raises what the stream fails with."""
    ready = asyncio.Event()
    stream = RequestStream(ready.set)
    command = client.add(request, stream)
    if on_sent is not None:
        on_sent(command)
    try:
        while True:
            await ready.wait()
            output = stream.take()
            if not stream.is_ready:
                ready.clear()
            yield output
            if output.finish_reason is not None:
                return
    finally:
        client.abort(request.request_id)
