"""`fairlead-engine serve`: take the address, start the core, then serve.

The core starts before this process imports the HTTP stack: loading a model takes longest, and each takes a processor.
The command line calls `run`, which leads to `ServerProcess.serve`.
"""

import asyncio
import contextlib
import os
import socket
import time
from functools import partial
from pathlib import Path

from fairlead_common.garbage import unsearched
from fairlead_common.http.connections import allow_descriptors
from fairlead_common.logs import configure_logging
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.core.process_client import ProcessClient
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import EngineError
from fairlead_engine.host import termination
from fairlead_engine.host.workers import prompt_root
from fairlead_engine.sources.models_folder import hold_model


def run(
    engine: EngineConfig,
    server: ServerConfig,
    *,
    core_module: str = "fairlead_engine.core",
    folder: Path | None = None,
) -> int:
    """Serves until drained; returns the process's exit status. Start-up errors go to the termination log.
    `core_module`: the core's program. `folder`: of tokenizer and templates, if not the model's."""
    began = time.perf_counter()
    configure_logging(server.log_level, server.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else a thread starts for every core of the node
    allow_descriptors(server.max_connections, per_connection=1)
    try:
        folder = folder or resolve_model(engine.model)
        with contextlib.ExitStack() as held:
            # Nobody removes the downloaded models meanwhile: a restarted container reads the files again.
            for path in (Path(each).expanduser() for each in (engine.model, engine.speculative_model) if each):
                if (model := hold_model(path if path.is_dir() else path.parent)) is not None:
                    held.enter_context(model)
            serve = partial(_serve, engine, server, core_module, folder, began)
            termination.serve_at(server.host, server.port, serve)
    except EngineError as error:
        termination.report(error)
        return 1
    return 0


async def _serve(
    engine: EngineConfig,
    server: ServerConfig,
    core_module: str,
    folder: Path,
    began: float,
    listener: socket.socket,
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
    with unsearched():
        from fairlead_engine.server.server_process import ServerProcess

    await ServerProcess(engine, server, folder, listener, client, starting, root, began).serve()
