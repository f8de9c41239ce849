"""`/openapi.json`: what the gateway accepts, as a file of this package. `make reference` writes it.

Nothing of it is kept in memory: it is read for whoever asks.
"""

import asyncio
from pathlib import Path

PATH_DOCUMENT = "/openapi.json"
FILE = Path(__file__).with_name("openapi.json")


async def document() -> bytes:
    """The document, as it is stored."""
    return await asyncio.to_thread(FILE.read_bytes)
