"""`fairlead operator` as a program: arguments, exit statuses, logs, health and metrics."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from fairlead.controller.operator import add_arguments, run
from fairlead.controller.operator_metrics import OperatorMetrics, serve_health
from fairlead.controller.reconcile import ReconcileOutcome
from fairlead.kube.resources import LEASES
from fairlead_common.logs import LogfmtFormatter
from fairlead_testing.local_api import local_api_server
from fairlead_testing.operators import bare_api_server, fleet_at


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def quiet_root_logger() -> Iterator[None]:
    """The command configures logging for its process; here that is the test's."""
    handlers, level = logging.root.handlers, logging.root.level
    yield
    logging.root.handlers, logging.root.level = handlers, level


def test_settings_that_cannot_be_used_end_with_status_2_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("gatewayURL: http://x\n")
    assert run(parse("--settings", str(path))) == 2
    error = capsys.readouterr().err
    assert "setting gatewayURL: is unknown" in error
    assert "hint: did you mean gatewayUrl?" in error


def test_a_kubeconfig_that_is_not_there_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("--kubeconfig", str(tmp_path / "absent"))) == 2
    assert "cannot read the kubeconfig" in capsys.readouterr().err


def test_a_port_that_is_taken_ends_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kubeconfig").write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "settings.yaml"
        path.write_text(f"host: 127.0.0.1\nport: {taken.getsockname()[1]}\n")
        assert run(parse("--settings", str(path), "--kubeconfig", str(tmp_path / "kubeconfig"))) == 1
    assert "address already in use" in capsys.readouterr().err


@contextlib.asynccontextmanager
async def leading_operator(folder: Path, kubeconfig: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The program once it leads, and its port; killed at the end if it still runs."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = folder / "settings.yaml"
    settings.write_text(f"host: 127.0.0.1\nport: {port}\nleaseNamespace: default\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "operator", "--settings", str(settings), "--namespace", "default",
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await until_leader(port)
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_the_program_serves_health_and_ends_at_sigterm_with_status_0(tmp_path: Path) -> None:
    async with (
        local_api_server(tmp_path) as api,
        leading_operator(tmp_path, api.kubeconfig_path) as (process, port),
    ):
        assert "fairlead_operator_reconciliations_total" in await until_leader(port)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, log
    assert b'msg="acquired the lease default/fairlead-operator"' in log


async def test_signals_that_are_repeated_change_nothing(tmp_path: Path) -> None:
    async with (
        bare_api_server(tmp_path) as kubeconfig,
        fleet_at(kubeconfig) as fleet,
        leading_operator(tmp_path, kubeconfig) as (process, _),
    ):
        await fleet.create()
        await fleet.until_reason("Reconciling")
        ended = asyncio.create_task(process.communicate())
        async with asyncio.timeout(20):
            while process.returncode is None:
                for number in (signal.SIGTERM, signal.SIGINT):
                    with contextlib.suppress(ProcessLookupError):  # it has ended, and the loop knows it in a moment
                        os.kill(process.pid, number)  # `send_signal` would reap it behind the loop's back
                    await asyncio.sleep(0.01)
        _, log = await ended
        assert process.returncode == 0, log
        assert b"level=error" not in log
        assert not (await fleet.get(LEASES, "fairlead-operator"))["spec"].get("holderIdentity"), "it is given back"


async def until_leader(port: int) -> str:
    async with asyncio.timeout(20), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        while True:
            try:
                async with session.get("/metrics") as response:
                    text = await response.text()
            except aiohttp.ClientError:
                text = ""
            if "fairlead_operator_leader 1.0" in text:
                return text
            await asyncio.sleep(0.05)


async def test_health_and_metrics_are_served_only_while_the_context_lasts() -> None:
    metrics = OperatorMetrics()
    metrics.observe(ReconcileOutcome.APPLIED, 0.01)
    metrics.waiting.set(3)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with serve_health(metrics, "127.0.0.1", port):
            for path in ("/health", "/ready"):
                async with session.get(path) as response:
                    assert response.status == 200
            async with session.get("/metrics") as response:
                text = await response.text()
        with pytest.raises(aiohttp.ClientError):
            await session.get("/health")
    assert 'fairlead_operator_reconciliations_total{outcome="applied"} 1.0' in text
    assert 'fairlead_operator_reconciliations_total{outcome="blocked"} 0.0' in text
    assert "fairlead_operator_queue_length 3.0" in text


async def test_port_zero_serves_nothing() -> None:
    async with serve_health(OperatorMetrics(), "127.0.0.1", 0):
        pass


def test_a_log_line_holds_its_fields_quoted_where_needed() -> None:
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": 'said "%s"', "args": ("hi\n",)})
    record.outcome, record.empty = "applied", ""
    line = LogfmtFormatter().format(record)
    assert line.endswith('level=info logger=x msg="said \\"hi\\n\\"" outcome=applied empty=""')
    assert line.startswith("ts=")
    assert "\n" not in line
