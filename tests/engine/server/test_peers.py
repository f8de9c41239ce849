"""What the first HTTP process of an engine keeps of another, whose place a small program takes."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.host.peer_link import PeerFigures
from fairlead_engine.server.peers import Peer

DYING = """#!{python}
import json, os, sys
orders = json.loads(sys.stdin.readline())
os.write(orders["messages_fd"], {said!r})
os.kill(os.getpid(), 9)
"""


async def test_what_a_dead_process_has_counted_stays_and_its_connections_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, everything = Metrics("tiny"), Metrics("tiny")
    counted.first_token(0.1)
    counted.watch_connections([None] * 3)
    script = tmp_path / "peer"
    said = msgspec.json.encode(PeerFigures(2, counted.observed())) + b"\n"
    script.write_text(DYING.format(python=sys.executable, said=said))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stream: Any = None  # nothing is told of gateways
    peer = Peer(1, stream, take_control=lambda connection: None, on_lost=lambda peer, how: lost.set_result(how))
    await peer.start(EngineConfig(model="tiny"), ServerConfig(), tmp_path, "", 2)
    assert "signal 9" in await lost
    assert peer.figures.num_running == 0
    everything.elsewhere = lambda: peer.figures.samples
    told = everything.render().decode()
    assert 'fairlead_engine_time_to_first_token_seconds_count{model_name="tiny"} 1.0' in told
    assert 'fairlead_engine_open_connections{model_name="tiny"} 0.0' in told
    await peer.stop()
