"""`fairlead bench` as a process, against fake engines; and its arguments."""

import argparse
import asyncio
import json
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cli.bench import fitted, phases
from fairlead.client.workload import ArrivalPhase, WorkloadKind, WorkloadShape, context_tokens
from fairlead_testing.fake_engine import Death, FakeEngine, Refusal
from fairlead_testing.fake_engine.engine import DEFAULT_LIMITS

FOREVER = float("inf")
FIXED = ("--workload", "fixed", "--prompt", "Hello")


async def test_a_closed_loop_measures_and_writes_what_it_saw(fairlead, tmp_path: Path) -> None:
    output, plot = tmp_path / "new" / "bench.json", tmp_path / "bench.png"
    async with FakeEngine() as engine:
        ended = await fairlead(
            "bench", "--gateway", engine.url.replace("//", "//me:secret@"), "--model", "fake", "--num-requests", "12",
            "--concurrency", "3", "--slo-ttft", "30s", "--output", str(output), "--plot", str(plot), *FIXED,
        )  # fmt: skip
        assert len(engine.requests) == 12
    assert ended.status == 0, ended.err
    assert f"fake at {engine.url}" in ended.out
    assert "12 answered, 0 rejected (429), 0 failed" in ended.out
    assert "100.0 % of all requests sent met TTFT ≤ 30s" in ended.out
    document = json.loads(output.read_text())
    assert document["report"]["num_completed"] == len(document["requests"]) == 12
    assert document["arguments"]["mode"] == "closed" and document["arguments"]["gateway"] == engine.url
    assert document["report"]["ttft"]["p50"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


async def test_an_open_loop_sends_by_its_rate_and_seed(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.served_name = "other"
        ended = await fairlead(
            "bench", "--gateway", f"{engine.url}/v1", "--model", "other", "--rate", "200@1s", "--seed", "3",
            "--output", "-", *FIXED,
        )  # fmt: skip
    document = json.loads(ended.out)
    due = [request["due"] for request in document["requests"]]
    assert due == sorted(due) and 100 < len(due) < 300
    assert document["arguments"]["rate"] == [{"rate": 200.0, "seconds": 1.0}]


async def test_rejects_are_no_failures_and_failures_are(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.refusal = Refusal.FULL
        rejected = await fairlead(
            "bench", "--gateway", engine.url, "--model", "fake", "--num-requests", "4", "--slo-ttft", "1s", *FIXED
        )
        engine.refusal, engine.death = None, Death.AFTER_ONE_TOKEN
        failed = await fairlead("bench", "--gateway", engine.url, "--model", "fake", "--num-requests", "4", *FIXED)
    assert rejected.status == 0
    assert "0 answered, 4 rejected (429), 0 failed" in rejected.out
    assert "0.0 % of all requests sent" in rejected.out
    assert failed.status == 1
    assert "0 answered, 0 rejected (429), 4 failed" in failed.out


@pytest.mark.parametrize("model", [(), ("--model", "fake")], ids=["any model", "a named one"])
async def test_a_closed_port_is_the_cause_and_told_once(fairlead, model: tuple[str, ...]) -> None:
    async with FakeEngine() as engine:
        url = engine.url
    ended = await fairlead("bench", "--gateway", url, *model, *FIXED)
    assert (ended.status, ended.out) == (1, "")
    assert "cannot connect" in ended.err and ended.err.count("Connection refused") == 1
    assert "hint: is a gateway running" in ended.err and "`fairlead local up` starts one" in ended.err
    assert "ssl:" not in ended.err and "Traceback" not in ended.err


async def test_a_model_that_is_not_there_is_told_once_and_nothing_is_sent(fairlead) -> None:
    async with FakeEngine() as engine:
        ended = await fairlead("bench", "--gateway", engine.url, "--model", "dingy", *FIXED)
        assert engine.requests == []
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.count("There is no such model.") == 1 and "hint: what there is: curl" in ended.err


async def test_a_server_that_goes_away_meanwhile_is_named_in_the_report(fairlead) -> None:
    async with FakeEngine() as engine:
        engine.death = Death.AFTER_ONE_TOKEN
        ended = await fairlead("bench", "--gateway", engine.url, "--model", "fake", "--num-requests", "2", *FIXED)
    assert ended.status == 1
    assert "error: " in ended.out and "broken" not in ended.out, "in words"


async def test_defaults_fit_the_models_context_and_flags_that_do_not_are_named(fairlead) -> None:
    async with FakeEngine(limits=replace(DEFAULT_LIMITS, max_model_len=300)) as engine:
        asked = ("bench", "--gateway", engine.url, "--model", "fake", "--num-requests", "2")
        fitting = await fairlead(*asked)
        asked_tokens = [request.json()["max_tokens"] for request in engine.requests]
        refused = await fairlead(*asked, "--prefix-tokens", "2000")
        long = await fairlead(*asked, "--output-tokens", "290")
    assert "--prefix-tokens 50: the model's context is 300 tokens" in fitting.err
    assert asked_tokens == [32, 32]
    assert (refused.status, refused.out) == (2, "")
    assert "error: --prefix-tokens 2000 does not fit" in refused.err and "the model's context is 300" in refused.err
    assert long.status == 2 and "error: --output-tokens 290 does not fit" in long.err


async def test_a_full_disk_is_named_with_its_file_and_the_other_file_is_written(tmp_path: Path) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "picture.png"
    async with FakeEngine() as engine:
        asked = ("--gateway", engine.url, "--num-requests", "400", "--output", str(report), "--plot", str(picture))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", "bench", *asked, *FIXED,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000)),
        )  # fmt: skip
        _, err = await process.communicate()
    assert process.returncode == 1
    assert f"error: cannot write {report}: File too large" in err.decode()
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", WorkloadKind)
@pytest.mark.parametrize("context", [None, 128, 512, 4096])
def test_what_was_left_open_fits_and_what_was_given_stays(kind: WorkloadKind, context: int | None) -> None:
    assert fitted(kind, WorkloadShape(), (), context) == WorkloadShape() or 2 * context_tokens(
        kind, fitted(kind, WorkloadShape(), (), context)
    ) <= (context or 0)
    given = replace(WorkloadShape(), output_tokens=40)
    assert fitted(kind, given, {"output_tokens"}, context).output_tokens == 40


async def test_ctrl_c_tells_what_was_measured(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.pace = lambda index: asyncio.sleep(3600) if engine.num_finished >= 2 else asyncio.sleep(0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", "bench", "--gateway", engine.url, "--model", "fake", "--concurrency", "1",
            *FIXED, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        while engine.num_running == 0 or engine.num_finished < 2:
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    assert process.returncode == 130
    assert "Interrupted; so far:" in out.decode()
    assert "2 answered" in out.decode() and "1 not finished" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "open"], ["--mode open needs --rate", "hint: "]),
        (["--mode", "closed", "--rate", "4"], ["--rate goes with --mode open", "--concurrency 8"]),
        (["--burstiness", "2"], ["--burstiness goes with --rate"]),
        (["--rate", "4", "--burstiness", "0"], ["'0' is no burstiness"]),
        (["--rate", "4", "--burstiness", "nan"], ["'nan' is no burstiness"]),
        (["--rate", "4", "--concurrency", "2"], ["--concurrency goes with --mode closed"]),
        (["--prompt", "Hello"], ["--prompt goes with --workload fixed"]),
        (["--rate", "fast"], ["'fast' is no rate", "2@30s,8@60s"]),
        (["--rate", "2,8@60s"], ["every phase but the last needs its time"]),
        (["--duration", "soon"], ["'soon' is not a duration", "500ms, 30s"]),
        (["--num-requests", "0"], ["'0' is not a whole number of at least 1"]),
        (["--workload", "odd"], ["'odd'", "'shared-prefix', 'multi-turn'"]),
        (["--rate", "inf"], ["'inf'", "--mode closed"]),
        (["--rate", "1e300"], ["'1e300'", "at most 100000"]),
        (["--rate", "nan@3s,4"], ["'nan@3s,4' is no rate"]),
        (["--rate", "-1@3s,4"], ["expected one argument"]),
        (["--rate=-1@3s,4"], ["'-1@3s,4' is no rate"]),
        (["--timeout", "9" * 400], ["longer than a year"]),
        (["--slo-ttft", "9" * 40 + "d"], ["longer than a year"]),
        (["--output", "/"], ["--output /: it cannot be written: Is a directory", "hint: name another file"]),
        (["--plot", "/proc/picture.png"], ["--plot /proc/picture.png: it cannot be written"]),
        (["--gateway", "gateway:8080"], ["'gateway:8080' is not an address: write http://HOST:PORT"]),
    ],
)
def test_bad_arguments_are_named_with_a_hint(asked, arguments: list[str], words: list[str]) -> None:
    ended = asked("bench", *arguments)
    assert ended.status == 2
    assert all(word in ended.err for word in words), ended.err


def test_rates_in_phases() -> None:
    assert phases("4") == (ArrivalPhase(4.0, FOREVER),)
    assert phases("2@30s,8@1m,0.5") == (ArrivalPhase(2.0, 30.0), ArrivalPhase(8.0, 60.0), ArrivalPhase(0.5, FOREVER))
    for text in ("", "0", "0@5s", "-1", "2@", "2@30s,,8"):
        with pytest.raises(argparse.ArgumentTypeError):
            phases(text)


async def test_a_duration_cuts_phases_off(fairlead) -> None:
    async with FakeEngine() as engine:
        asked = ("bench", "--gateway", engine.url, "--model", "fake", "--output", "-", *FIXED)
        ended = await fairlead(*asked, "--rate", "100@500ms,300", "--duration", "1s")
    due = [request["due"] for request in json.loads(ended.out)["requests"]]
    assert 120 < len(due) < 280 and max(due) < 1.0
    assert 20 < sum(each < 0.5 for each in due) < 80
