"""`python -m fairlead_testing.hostile_engine --port N`: an engine that serves, and tells of blocks without end.

It reports a cache of 1000 blocks and stores 20,000 new ones every 50 ms. Of the flags of `fairlead-engine serve` it
reads the address and the name.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from itertools import count

from fairlead_common.wire.blocks import BlockHash
from fairlead_testing.fake_engine import FakeEngine

_NUM_BLOCKS, _NUM_NEW, _SECONDS = 1000, 20_000, 0.05


async def serve(host: str, port: int, served_name: str) -> None:
    """Until SIGTERM or SIGINT."""
    engine = FakeEngine("hostile", served_name=served_name, num_kv_blocks=_NUM_BLOCKS, host=host, port=port)
    engine.keeps_requests = False
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    hashes = _hashes()
    async with engine:
        while not ended.is_set():
            if engine.stream.num_followers:
                engine.stream.pretend([next(hashes) for _ in range(_NUM_NEW)])
            await asyncio.sleep(_SECONDS)


def _hashes() -> Iterator[BlockHash]:
    return (number.to_bytes(16, "big") for number in count())


def main() -> None:
    """Serves as the command line says."""
    parser = argparse.ArgumentParser("python -m fairlead_testing.hostile_engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--served-name", default="hostile", help="the model's name (default: %(default)s)")
    arguments, _ = parser.parse_known_args()
    asyncio.run(serve(arguments.host, arguments.port, arguments.served_name))


if __name__ == "__main__":
    main()
