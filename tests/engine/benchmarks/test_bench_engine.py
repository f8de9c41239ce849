"""The benchmark of engines: nobody is left out in silence, the roofline counts what a model has, pages tell all."""

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
import torch

from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import Measured
from fairlead_engine.model.loading import read_config
from fairlead_engine_testing import FakeRunner
from fairlead_engine_testing.checkpoints import tensor_shapes, write_random_checkpoint
from fairlead_engine_testing.profiles import profile_of
from fairlead_engine_testing.tiny_families.dense import llama_fields

RATES = {"bytes_per_second": 1e9, "flops_per_second": 1e9}
FOLDER = Path(__file__).parents[3] / "engine" / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import bench_engine

    return bench_engine


def run_of(**figures: Any) -> dict[str, Any]:
    names = ("wall_seconds", "cpu_seconds", "start_seconds", "tokens_per_cpu_second", "ttft_p50_seconds",
             "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "peak_memory_mib")  # fmt: skip
    return {"version": "1", **dict.fromkeys(names, 1.0), **figures}


def test_engines_that_are_missing_fail_or_find_no_time_are_rows_with_a_reason(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The failing one is a real process, started as all are."""
    ours, hand_loop = bench.ENGINES[:2]
    engines = (
        replace(ours, script="no_such_script.py"),
        replace(hand_loop, name="absent", package="absent-engine"),
        replace(ours, name="of a GPU", device="cuda"),
        replace(hand_loop, name="slow"),
    )
    monkeypatch.setattr(bench, "ENGINES", engines)
    setting = bench.Setting("small", True, 1)
    found = bench.Results.begin(tmp_path / "found.json", {}, resume=False)
    runs = bench.Bench(tmp_path, {"small": tmp_path}, {"absent-engine": "no wheel"}, time.monotonic() + 60, found)
    runs.device = "cpu"
    monkeypatch.setattr(runs, "_measure_rates", lambda threads: found.found["rates"].update({"1": RATES}))
    runs.run([setting], 2)
    failed, absent, gpu, greedy = found.found["tables"][0]["engines"]
    assert failed["reason"].startswith("failed with exit code 2") and "no_such_script.py" in failed["reason"]
    assert absent["reason"] == "not installed: no wheel"
    assert "cuda only" in gpu["reason"]
    assert greedy["reason"] == "has no sampling"
    runs.deadline = time.monotonic()
    runs.run([bench.Setting("small", False, 1)], 1)
    assert found.found["tables"][1]["engines"][3]["reason"] == "the time was over"


def test_a_benchmark_goes_on_where_it_ended(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It ends between two runs, as by a signal; what was found then is in the file, and is not measured again."""
    path, setting, calls = tmp_path / "out" / "found.json", bench.Setting("small", False, 1), []
    monkeypatch.setattr(bench, "ENGINES", bench.ENGINES[:2])

    def begun(*, resume: bool) -> Any:
        found = bench.Results.begin(path, {"cpu": "c"}, resume=resume)
        runs = bench.Bench(tmp_path, {"small": tmp_path}, {}, time.monotonic() + 60, found)
        monkeypatch.setattr(runs, "_measure_rates", lambda threads: found.found["rates"].update({"1": RATES}))
        monkeypatch.setattr(runs, "_measure", measure)
        return runs

    def measure(engine: Any, setting: Any) -> Any:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(engine.name)
        return ([], "failed") if len(calls) == 2 else ([run_of(run=len(calls))], None)

    with pytest.raises(KeyboardInterrupt):
        begun(resume=False).run([setting], 3)
    assert calls == ["fairlead", "hand loop", "fairlead"]
    calls.append("interrupted")
    begun(resume=True).run([setting], 2)
    assert calls[4:] == ["hand loop", "hand loop"]
    ours, other = bench.json.loads(path.read_text())["tables"][0]["engines"]
    assert [run["run"] for run in ours["runs"]] == [1, 3]
    assert [run["run"] for run in other["runs"]] == [5, 6] and "reason" not in other


def test_what_cannot_be_gone_on_with_is_said(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import results

    path = tmp_path / "found.json"
    with pytest.raises(SystemExit, match="does not exist"):
        bench.Results.begin(path, {}, resume=True)
    bench.Results.begin(path, {"cpu": "one"}, resume=False).save()
    with pytest.raises(SystemExit, match=r"other machine; begin anew without --resume"):
        bench.Results.begin(path, {"cpu": "another"}, resume=True)
    monkeypatch.setattr(results, "sources", lambda: "changed")
    with pytest.raises(SystemExit, match=r"other sources"):
        bench.Results.begin(path, {"cpu": "one"}, resume=True)


@pytest.mark.long
@pytest.mark.parametrize(("machine", "floats", "num_equal"), [({}, "float32", 8), ({"gpu": "g"}, "bfloat16", 1)])
def test_the_engine_and_the_hand_loop_choose_what_transformers_chooses(
    bench: Any, machine: dict[str, str], floats: str, num_equal: int, tmp_path: Path
) -> None:
    """The scripts as they are run, on a tiny Qwen3 with tied embeddings; half precision parts them after a while."""
    from workload import Q06

    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": Q06.vocab_size}  # fmt: skip
    checkpoint = write_random_checkpoint(tmp_path / "q06", {**Q06.model, **small})
    setting = bench.Setting("q06", False, 1)
    found = bench.Results.begin(tmp_path / "found.json", machine, resume=False)
    runs = bench.Bench(tmp_path, {"q06": checkpoint}, {}, time.monotonic() + 3600, found)
    samples = {}
    ours, hand_loop, ours_int8, hand_loop_int8, generate = runs.engines[:5]
    assert (ours.dtype, ours_int8.dtype, generate.name) == (floats, "int8", "transformers generate")
    for engine in (ours, hand_loop, generate, ours_int8, hand_loop_int8):
        [measured], reason = runs._measure(engine, setting)
        assert reason is None, reason
        assert measured["num_output_tokens"] == sum(request.num_outputs for request in Q06.requests())
        assert 0 < measured["ttft_p50_seconds"] <= measured["ttft_p99_seconds"] <= measured["wall_seconds"]
        assert 0 < measured["tpot_p50_seconds"] <= measured["tpot_p99_seconds"]
        if engine.dtype == floats:
            samples[engine.name] = tuple(measured["sample"][:num_equal])
    assert len(samples) == 3 and len(set(samples.values())) == 1, samples


@pytest.mark.parametrize("tied", [False, True])
def test_the_roofline_counts_the_matrices_of_the_checkpoint(bench: Any, tmp_path: Path, tied: bool) -> None:
    from roofline import Rates, Work

    fields = llama_fields(tie_word_embeddings=tied)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    shapes = dict(tensor_shapes(read_config(tmp_path)))
    matrices = sum(torch.Size(shape).numel() for shape in shapes.values() if len(shape) == 2)
    embedding = 0 if tied else torch.Size(shapes["model.embed_tokens.weight"]).numel()
    work = Work.of(fields, "bfloat16")
    assert work.weight_numbers == matrices - embedding
    assert work.decode_bytes(10) == 2 * (work.weight_numbers + 10 * 2 * 2 * 2 * 16)
    memory_bound = Rates(bytes_per_second=1.0, flops_per_second=1e30)
    assert work.decode_seconds(memory_bound, 1, 10) == work.decode_bytes(10)
    compute_bound = Rates(bytes_per_second=1e30, flops_per_second=1.0)
    assert work.decode_seconds(compute_bound, 3, 10) == 6 * work.weight_numbers


def test_a_page_has_every_engine_its_range_and_the_goals(bench: Any, tmp_path: Path) -> None:
    import page

    engine = {"dtype": "bfloat16"}
    rates = [run_of(tokens_per_second=rate) for rate in (100.0, 150.0, 110.0)]
    entry = {
        "setting": {"workload": "small", "sampled": False, "threads": 1},
        "name": "small, greedy, 1 thread",
        "roofline_seconds": 0.5,
        "engines": [
            {"engine": {"name": "fairlead", **engine}, "runs": rates},
            {"engine": {"name": "transformers generate", **engine}, "runs": [run_of(tokens_per_second=50.0)]},
            {"engine": {"name": "hand loop", **engine}, "runs": [run_of(tokens_per_second=220.0)]},
            {"engine": {"name": "llama.cpp", **engine}, "runs": [], "reason": "not installed: no compiler"},
        ],
    }
    late = {**entry, "name": "q06, greedy, 1 thread", "engines": [{**entry["engines"][3], "reason": "too late"}]}
    results = {
        "command": "make bench-engine",
        "machine": {"cpu": "Some CPU (R)", "cores": 4, "bfloat16 by": "amx_bf16"},
        "rates": {"1": {"bytes_per_second": 1e9, "flops_per_second": 1e9}},
        "minutes": 1.0,
        "tables": [entry, late],
        "profiles": {entry["name"]: {"bfloat16": {"aten::mm": 0.634, "aten::add": 0.001}, "int8": {}}},
    }
    path = page.write(results, tmp_path)
    assert path.name == "some-cpu-r-amx-bf16-4-cores.md"
    written = path.read_text()
    assert "| fairlead 1 | bfloat16 | 3 | **110.0** (100.0–150.0) " in written
    assert "What bounds Fairlead in bfloat16, " in written and "has seen: `aten::mm` 63%." in written
    assert "What bounds Fairlead in int8" not in written
    assert "| llama.cpp | bfloat16 | 0 | not installed: no compiler |" in written
    assert "## q06, greedy, 1 thread\n\nNot measured: too late.\n" in written
    assert "the best torch peer | 2.20 × | 1.00 × | 1.5 × | met" in written
    assert "the best of all, hand loop included | 0.50 × | 1.00 × | 1.0 × | **missed**" in written
    assert all((tmp_path / name).exists() for name in re.findall(r"\]\(([\w-]+\.svg)\)", written))


def test_on_a_busy_machine_cpu_seconds_decide_about_goals(bench: Any) -> None:
    """As others' work stretches one run's seconds and not the next one's."""
    import page

    def row(name: str, **figures: float) -> dict[str, Any]:
        return {"engine": {"name": name, "dtype": "float32"}, "runs": [run_of(**figures)]}

    def verdict(cpu_seconds: float) -> str:
        ours = row("fairlead", tokens_per_second=100.0, tokens_per_cpu_second=200.0, cpu_seconds=cpu_seconds)
        peer = row("transformers generate", tokens_per_second=100.0, tokens_per_cpu_second=100.0)
        setting = {"workload": "small", "sampled": False, "threads": 1}
        entry = {"setting": setting, "name": "small", "engines": [ours, peer]}
        return str(page.goals({"machine": {}, "tables": [entry]}).splitlines()[2])

    assert verdict(cpu_seconds=1.0).endswith("| 1.00 × | 2.00 × | 1.5 × | **missed** |")
    assert verdict(cpu_seconds=0.5).endswith("| 1.00 × | 2.00 × | 1.5 × | met |")


def test_a_checkpoint_has_a_word_for_every_id(bench: Any, tmp_path: Path) -> None:
    """Peers that know words only are told them; bytes come back as they were."""
    bench.write_tokenizer(tmp_path, 300)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    assert len({tokenizer.id_to_token(token_id) for token_id in range(300)}) == 300
    text = "déjà vu"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == tokenizer.id_to_token(1)


def test_how_cost_grows_is_explained_by_bytes_and_operations(bench: Any, tmp_path: Path) -> None:
    """A profile as `characterise` writes it: what costs twice what its operations allow is at half the roofline."""
    import page
    from roofline import Rates, Work
    from workload import SMALL

    rates = {"bytes_per_second": 1e9, "flops_per_second": 1e9}
    work = Work.of(SMALL.model, "float32")
    behind = work.behind(Rates(**rates))
    assert behind["base"][1] == work.decode_bytes(0) / 1e9
    assert behind["kv_token"] == ("16 kB of keys and values read", 16384 / 1e9)
    cost = StepCost(base=1.0, decode_seq=2 * behind["decode_seq"][1])
    shape = {"ttft_seconds": 1.0, "tpot_seconds": 1.0, "tokens_per_second": 1.0, "output_tokens": 2}
    measured = [Measured(batch=batch, prompt_tokens=16 * batch, **shape) for batch in (1, 2)]
    profile = profile_of(FakeRunner(), block_size=4, cost=cost, measured=measured)
    grown = json.loads(msgspec.json.encode(profile))
    results = {"machine": {"cpu": "c", "cores": 1}, "command": "", "minutes": 0, "tables": [], "rates": {"1": rates},
               "growth": {"small": grown, "q06": {"reason": "took more than 9 s"}}}  # fmt: skip
    import plots

    plots.growth(grown, results, "small", tmp_path / "growth.svg")
    assert "ms to the first token" in (tmp_path / "growth.svg").read_text()
    written = page.text(results)
    assert "| sequence that decodes | " in written and "| 117 ms | 0.06 GFLOP | 58.7 ms | 50% |" in written
    assert "Not measured: took more than 9 s" in written


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_stops_nobody_else(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A real environment: it sees this one's packages, and counts only its own as installed."""
    import peer_environment

    requirements = tmp_path / "peers.txt"
    requirements.write_text("# comment\n./no-such-folder  # not there\npip>=1\nslow-engine==1\n")
    monkeypatch.setattr(peer_environment, "REQUIREMENTS", requirements)
    monkeypatch.setattr(peer_environment, "SLOW_BUILDS", ("slow-engine",))
    missing = peer_environment.prepare(tmp_path / "peers", slow_builds=False)
    assert set(missing) == {"./no-such-folder", "slow-engine"}
    assert "no-such-folder" in missing["./no-such-folder"]
    assert "compiled" in missing["slow-engine"]
    python = peer_environment.python(tmp_path / "peers")
    subprocess.run([str(python), "-c", "import torch, sys; assert 'peers' in sys.prefix"], check=True)
    assert not peer_environment.installed(tmp_path / "peers", "no-such-package")
