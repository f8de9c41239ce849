"""Local mode's Kubernetes API in a thread of this process, for the requests that a genuine API server is asked."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fairlead_testing.local_api import local_api_server


@contextmanager
def local_mode(folder: Path) -> Iterator[httpx.Client]:
    """A client of a running server, with its token; state goes into `folder`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="local mode's API")
    thread.start()
    server = local_api_server(folder)
    try:
        api = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        headers = {"Authorization": f"Bearer {api.token}"}
        try:
            with httpx.Client(base_url=api.url, headers=headers, trust_env=False, timeout=30.0) as client:
                yield client
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
