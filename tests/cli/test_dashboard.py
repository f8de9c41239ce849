"""`fairlead dashboard`: whose page is opened. kubectl is a program of the test."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

FORWARDING = "echo 'Forwarding from 127.0.0.1:41234 -> 8080'; echo 'Forwarding from [::1]:41234 -> 8080'"

CONFIG = """
clusters: [{name: far, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: far, context: {cluster: far, user: me}}]
users: [{name: me, user: {}}]
current-context: far
"""


@pytest.fixture
def kubectl(tmp_path: Path):
    """`kubectl(SCRIPT)`: a kubectl that notes its words and does this; the PATH with it."""

    def make(script: str) -> str:
        program = tmp_path / "kubectl"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path / "words"}\n{script}\n')
        program.chmod(0o755)
        return f"{tmp_path}:{os.environ['PATH']}"

    return make


async def test_a_known_gateway_is_shown_at_once(fairlead, tmp_path: Path) -> None:
    for options, variables in (
        (("--gateway", "http://127.0.0.1:9/v1"), {}),
        ((), {"FAIRLEAD_GATEWAY": "http://127.0.0.1:9"}),
    ):
        ended = await fairlead("dashboard", "--no-browser", *options, HOME=str(tmp_path), **variables)
        assert (ended.status, ended.out, ended.err) == (0, "http://127.0.0.1:9/\n", "")


async def test_a_browser_is_opened(fairlead, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    ended = await fairlead("dashboard", "--gateway", "http://127.0.0.1:9", BROWSER=f"{browser} %s")
    assert ended.status == 0
    assert opened.read_text() == "http://127.0.0.1:9/\n"


async def test_a_clusters_gateway_is_forwarded_until_ctrl_c(kubectl, tmp_path: Path) -> None:
    path = kubectl(f"{FORWARDING}; exec sleep 600")
    config = tmp_path / "config"
    config.write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "dashboard", "--no-browser", "--context", "far", "--system-namespace", "sys",
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PATH": path, "KUBECONFIG": str(config)},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"http://127.0.0.1:41234/\n"
        assert b"Ctrl-C" in await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    words = (tmp_path / "words").read_text().split()
    assert words == [
        "--context=far", "port-forward", "--address", "127.0.0.1", "--namespace", "sys", "service/fairlead-gateway",
        ":http",
    ]  # fmt: skip


async def test_what_kubectl_complains_of_is_told_without_its_log(fairlead, kubectl, tmp_path: Path) -> None:
    logged = 'E1201 09:35:47.853806     583 memcache.go:265] "Unhandled Error" err="connection refused"'
    path = kubectl(f"echo '{logged}' >&2; echo 'services \"fairlead-gateway\" not found' >&2; exit 1")
    config = tmp_path / "config"
    config.write_text(CONFIG)
    ended = await fairlead("dashboard", "--no-browser", PATH=path, HOME=str(tmp_path), KUBECONFIG=str(config))
    assert (ended.status, ended.out, ended.err) == (1, "", 'services "fairlead-gateway" not found\n')


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "error: found no Kubernetes API"),
        (("--kubeconfig", "/none"), "error: cannot read the kubeconfig /none"),
        (("--context", "far"), "error: found no Kubernetes API"),
    ],
)
async def test_where_there_is_neither_fleet_nor_cluster_kubectl_is_not_asked(
    fairlead, kubectl, tmp_path: Path, options, told: str
) -> None:
    path = kubectl("exit 1")
    ended = await fairlead("dashboard", *options, PATH=path, HOME=str(tmp_path), KUBECONFIG="")
    assert ended.status == 1 and ended.err.startswith(told)
    assert "hint: `fairlead local up`" in ended.err and ended.out == ""
    assert not (tmp_path / "words").exists()


async def test_without_kubectl_the_remedy_is_told(fairlead, tmp_path: Path) -> None:
    ended = await fairlead("dashboard", PATH=str(tmp_path), HOME=str(tmp_path))
    assert ended.status == 2 and "hint: install it, or name --gateway URL" in ended.err
