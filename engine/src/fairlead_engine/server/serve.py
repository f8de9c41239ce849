"""`fairlead-engine serve`: take the address, start the core, then serve.

The core starts before this process imports its HTTP stack: loading a model takes longest, and both take a core each.
The command line calls `run`, which leads to `ServerProcess.serve`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from fairlead_common.http.connections import allow_descriptors, listening_socket
from fairlead_common.logs import configure_logging
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.demo import resolve_model
from fairlead_engine.download.models_folder import hold_model
from fairlead_engine.errors import AddressUnavailable, EngineError
from fairlead_engine.server import termination
from fairlead_engine.server.workers import prompt_root


def run(
    engine: EngineConfig,
    server: ServerConfig,
    *,
    core_module: str = "fairlead_engine.core",
    folder: Path | None = None,
) -> int:
    """Serves until drained; returns the process's exit status. Start-up errors go to the termination log.

    `core_module`: the core's program. `folder`: of tokenizer and templates, if not the model's.
    """
    began = time.perf_counter()
    configure_logging(server.log_level, server.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else it starts a thread for every core of the node
    allow_descriptors(server.max_connections, per_connection=1)
    try:
        folder = folder or resolve_model(engine.model)
        with _held(engine.model, engine.speculative_model), _listening(server.host, server.port) as listener:
            uvloop.run(_serve(engine, server, core_module, folder, listener, began))
            # The loop hears them no longer, and a repeated one must not change the exit status.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
    except EngineError as error:
        termination.report(error)
        return 1
    return 0


@contextlib.contextmanager
def _held(*models: str | None) -> Iterator[None]:
    """Within the block nobody removes these downloaded models: a restarted container reads them again."""
    with contextlib.ExitStack() as stack:
        for path in (Path(each).expanduser() for each in models if each):
            if (held := hold_model(path if path.is_dir() else path.parent)) is not None:
                stack.enter_context(held)
        yield


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listening_socket(host, port)
    except OSError as error:
        remedy = "stop what holds the address, or choose another --port or --host"
        raise AddressUnavailable(f"{error.strerror}; {remedy}") from error


async def _serve(
    engine: EngineConfig,
    server: ServerConfig,
    core_module: str,
    folder: Path,
    listener: socket.socket,
    began: float,
) -> None:
    client = ProcessClient(
        engine,
        module=core_module,
        log_level=server.log_level,
        log_format=server.log_format,
        num_peers=server.api_servers - 1,
    )
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)  # the core's process exists from here on
    root = prompt_root()
    root.start()  # and so does this one
    from fairlead_engine.server.server_process import ServerProcess

    await ServerProcess(engine, server, folder, listener, client, starting, root, began).serve()
