"""The border to uvicorn: every private thing of it that `fairlead_common.http` uses is there and does what is
believed. Where a new version fails here, `http/limited.py` has to be read again beside it."""

import asyncio
import inspect
import tomllib
from pathlib import Path
from unittest.mock import Mock

import httptools
import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.config import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import Server, ServerState

from fairlead_common.http.connections import CutReason
from fairlead_common.http.framing import Fault
from fairlead_common.http.limited import HttpLimits, LimitedProtocol, WholeAnswer, make_protocol
from fairlead_common.http.server import HttpServer, StreamWriter

ROOT = Path(__file__).parent.parent.parent


def protocol_class() -> type[LimitedProtocol]:
    def refuse(fault: Fault, sentence: str, target: str) -> WholeAnswer:
        return WholeAnswer(400, (), b"{}")

    def cut(reason: CutReason) -> None:
        pass

    return make_protocol(HttpLimits(max_connections=10, unread_timeout=60.0), refuse, cut)


@pytest.mark.parametrize("folder", ["operator", "engine"])
def test_uvicorn_is_capped_and_the_installed_one_is_within_the_cap(folder: str) -> None:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    (wanted,) = [found for found in map(Requirement, project["dependencies"]) if found.name == "uvicorn"]
    assert any(each.operator == "<" for each in wanted.specifier)
    assert wanted.specifier.contains(uvicorn.__version__)


@pytest.mark.parametrize(
    "name",
    [
        "connection_made", "connection_lost", "data_received", "eof_received", "pause_writing", "resume_writing",
        "on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete",
        "on_response_complete", "timeout_keep_alive_handler", "shutdown", "_start_asgi_task",
        "_unset_keepalive_if_required",
    ],
)  # fmt: skip
def test_what_is_overridden_or_called_is_there_and_takes_the_same(name: str) -> None:
    theirs = inspect.signature(getattr(httptools_impl.HttpToolsProtocol, name))
    ours = inspect.signature(getattr(LimitedProtocol, name))
    assert list(ours.parameters) == list(theirs.parameters)


async def test_a_connection_has_the_attributes_that_are_read() -> None:
    config = Config(lambda *_: None, http=protocol_class(), lifespan="off", log_config=None)
    config.load()
    connection = protocol_class()(config, ServerState(), {})
    assert isinstance(connection.parser, httptools.HttpRequestParser)
    assert (connection.cycle, len(connection.pipeline), connection.url) == (None, 0, b"")
    assert connection.connections is connection.server_state.connections
    assert connection.timeout_keep_alive_task is None
    assert connection.timeout_keep_alive == config.timeout_keep_alive
    assert connection.loop is asyncio.get_running_loop()
    assert {
        "scope",
        "response_started",
        "response_complete",
        "keep_alive",
        "disconnected",
        "message_event",
        "body",
    } <= {
        *inspect.signature(httptools_impl.RequestResponseCycle).parameters,
        *httptools_impl.RequestResponseCycle.__init__.__code__.co_names,
    }
    assert list(inspect.signature(FlowControl).parameters) == ["transport"]
    assert httptools_impl.STATUS_LINE[431] == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_the_server_has_what_is_overridden() -> None:
    for name in ("main_loop", "shutdown", "capture_signals", "on_tick", "serve"):
        assert list(inspect.signature(getattr(HttpServer, name)).parameters) == list(
            inspect.signature(getattr(Server, name)).parameters
        )
    assert {"connections", "tasks"} <= ServerState().__dict__.keys()


async def test_a_part_written_past_asgi_is_the_same_bytes_and_waits_for_the_client_as_well() -> None:
    transport = Mock(is_closing=Mock(return_value=False))
    flow, logger = FlowControl(transport), Mock()
    cycle = httptools_impl.RequestResponseCycle(
        {"type": "http", "method": "POST"},  # type: ignore[typeddict-item]
        transport, flow, logger, logger, False, [], asyncio.Event(), False, True, Mock(),
    )  # fmt: skip
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    await cycle.send({"type": "http.response.body", "body": b"a part" * 9, "more_body": True})
    writer = StreamWriter(transport, flow)
    assert writer.is_ready
    writer.write(b"a part" * 9)
    *_, theirs, ours = transport.write.call_args_list
    assert ours == theirs
    flow.pause_writing()
    assert not writer.is_ready
    flow.resume_writing()
    transport.is_closing.return_value = True
    assert not writer.is_ready
