"""`fairlead-engine characterise` as people run it, and an engine that starts with what it wrote."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import msgspec
import pytest

from fairlead_common.wire.messages import PATH_KV_BLOCKS, PATH_KV_EVENTS
from fairlead_common.wire.profiles import EngineProfile, read_profile, write_profile

LIMITS = ("--dtype", "float32", "--max-num-seqs", "4", "--max-model-len", "512", "--kv-cache-memory", "4Mi",
          "--num-threads", "1")  # fmt: skip


def characterise(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairlead_engine", "characterise", *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def measured(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("profile")
    flags = ("--output", "out/tiny.json", "--tpot-target", "1h", "--time-limit", "3s")
    return folder / "out" / "tiny.json", characterise(folder, "--model", str(checkpoint), *LIMITS, *flags)


def test_a_profile_says_what_was_measured(measured: tuple[Path, Any], checkpoint: Path) -> None:
    path, done = measured
    assert done.returncode == 0, done.stderr
    profile = read_profile(path)
    assert (profile.architecture, profile.dtype, profile.device, profile.max_num_seqs) == (
        "LlamaForCausalLM", "float32", "cpu", 4,
    )  # fmt: skip
    assert (
        set(profile.start_seconds) == {"import", "load", "cache", "compile", "warm_up"}
        and min(profile.start_seconds.values()) > 0
    )
    assert profile.step_cost.is_known and profile.error.num_steps > 0
    assert {each.batch for each in profile.measured} == {1, 2, 4}
    assert len({each.prompt_tokens for each in profile.measured if each.batch == 1}) >= 5
    assert len({each.output_tokens for each in profile.measured}) >= 4
    assert all(each.ttft_seconds > 0 and each.tokens_per_second > 0 for each in profile.measured)
    weight = profile.max_batch_weight
    assert weight.most == weight.by_memory == weight.by_tpot == profile.num_kv_blocks * profile.block_size


def test_progress_and_summary_are_told(measured: tuple[Path, Any]) -> None:
    _, done = measured
    lines = done.stderr.splitlines()
    assert lines[0].startswith("loading ") and lines[1].startswith("started: import ")
    assert any("[1/" in line and "TTFT" in line and "of 3 s" in line for line in lines)
    assert "maximum batch weight" in done.stdout and "profile: out/tiny.json" in done.stdout


@pytest.mark.slow
def test_the_picture_has_a_dot_for_what_was_measured(measured: tuple[Path, Any]) -> None:
    path, _ = measured
    picture = ElementTree.parse(path.with_suffix(".svg"))
    dots = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    alone = [each for each in read_profile(path).measured if each.batch == 1]
    assert len(dots) >= len(alone) + 2 * 3
    assert all(float(dot.attrib["cy"]) > 0 for dot in dots)
    texts = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("time to first token" in text for text in texts) and any("tiny, float32" in text for text in texts)


@pytest.mark.slow
def test_an_engine_with_the_profile_tells_gateways_its_costs_before_any_request(
    measured: tuple[Path, Any], checkpoint: Path, start_engine: Any, tmp_path: Path
) -> None:
    """A thousandfold, so that no warm-up could have taught them."""
    profile = read_profile(measured[0])
    scaled = {name: 1000 * getattr(profile.step_cost, name) for name in ("base", "prefill_token", "decode_seq")}
    cost = msgspec.structs.replace(profile.step_cost, **scaled)
    path = tmp_path / "profile.json"
    write_profile(msgspec.structs.replace(profile, step_cost=cost), path)
    engine = start_engine("--model", str(checkpoint), *LIMITS, "--profile", str(path))
    engine.wait_ready()
    blocks = httpx.get(engine.url + PATH_KV_BLOCKS, timeout=10).json()
    following = {"epoch": blocks["epoch"], "seq": blocks["seq"]}
    with httpx.stream("GET", engine.url + PATH_KV_EVENTS, params=following, timeout=10) as stream:
        told = next(load for line in stream.iter_lines() if line and (load := json.loads(line).get("load")))
    assert told["step_cost"]["base"] == pytest.approx(cost.base, rel=0.01)


@pytest.mark.slow
def test_an_engine_of_another_number_format_refuses_the_profile(
    measured: tuple[Path, Any], checkpoint: Path, start_engine: Any
) -> None:
    engine = start_engine("--model", str(checkpoint), "--dtype", "bfloat16", "--profile", str(measured[0]))
    assert engine.wait_exit() == 1
    said = json.loads(engine.termination_log.read_text())
    assert said["reason"] == "InvalidConfig"
    assert "was measured with dtype float32, and this engine has bfloat16" in said["message"]


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (["--tpot-target", "0"], 2, "tpot-target: must be from"),
        (["--output", ""], 2, "output: is empty"),
        (["--output", "/proc/no/profile.json"], 1, "output: /proc/no/profile.json cannot be written"),
        (["--port", "8000"], 2, "unrecognized arguments: --port"),
        (["--model", "/no/such/model"], 1, "/no/such/model"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_work(
    tmp_path: Path, flags: list[str], status: int, says: str
) -> None:
    done = characterise(tmp_path, "--model", "demo://dinghy", *flags)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr


def test_profiles_of_a_newer_engine_with_more_fields_are_read(measured: tuple[Path, Any], tmp_path: Path) -> None:
    written = json.loads(measured[0].read_text())
    path = tmp_path / "newer.json"
    path.write_text(json.dumps({**written, "something_new": 1}))
    assert isinstance(read_profile(path), EngineProfile)
