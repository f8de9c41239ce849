"""`fairlead check` and `fairlead models catalog`, as they are typed: tables, JSON, exit statuses, and where a
configuration is found."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.fit.presets import presets
from fairlead_common.wire.model_sources import folder_name
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub, loopback_hub

EXAMPLES = Path(__file__).parents[2] / "examples"
CHART = Path(__file__).parents[2] / "charts" / "fairlead" / "values.yaml"
LLAMA_8B, LLAMA_70B = "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://meta-llama/Llama-3.1-70B-Instruct"
TINY = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip


Run = Callable[..., Any]


@pytest.fixture
def run(asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command, on a wide terminal, on a machine without downloaded models."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FAIRLEAD_MODELS_FOLDER", str(tmp_path / "models"))
    return asked


def written(folder: Path, *specs: dict[str, Any]) -> str:
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment"}
    documents: list[Any] = [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}}]
    documents += [{**kind, "metadata": {"name": f"m{index}"}, "spec": spec} for index, spec in enumerate(specs)]
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def served(source: str, profile: str = "nvidia-l4", **engine: Any) -> dict[str, Any]:
    return {"model": {"source": source}, "engine": engine, "resources": {"profile": profile}}


def test_a_model_that_fits_ends_with_0_and_says_its_numbers(run: Run) -> None:
    ended = run("check", "-f", str(EXAMPLES / "01-dinghy.yaml"))
    assert ended.status == 0, ended.err
    assert "dinghy: fits: weights take" in ended.out
    assert "3.6 million parameters (config: the catalogue)" in ended.out
    assert "cache there is room for" in ended.out


def test_an_impossible_one_ends_with_1_and_names_what_to_change(run: Run, tmp_path: Path) -> None:
    ended = run("check", "-f", written(tmp_path, served(LLAMA_70B, "nvidia-h100")))
    assert ended.status == 1
    assert "m0: does not fit (WeightsTooLarge): the weights alone take 131.4 GiB" in ended.out
    assert "  spec.engine.tensorParallelSize: 4 (with 4 GPUs in resources): weights 32.9 GiB" in ended.out
    assert "  spec.resources.profile: nvidia-h200 and engine.quantization: fp8" not in ended.out  # one change is enough


def test_several_documents_are_told_one_by_one_and_the_worst_decides(run: Run, tmp_path: Path) -> None:
    specs = served(LLAMA_8B, maxModelLen=4096, quantization="fp8"), served(LLAMA_8B, maxModelLen=65536, maxNumSeqs=8)
    ended = run("check", "-o", "json", "-f", written(tmp_path, *specs))
    assert ended.status == 1
    first, second = ended.json
    assert (first["name"], first["fits"], first["verdict"], first["wouldFit"]) == ("m0", True, "Fits", [])
    assert (second["fits"], second["certain"]) == (False, False)
    assert {"engine.maxModelLen", "engine.maxNumSeqs", "resources.profile", "engine.tensorParallelSize"} >= {
        field for changes in second["wouldFit"] for field in changes
    }
    assert second["weightsBytes"] == pytest.approx(16060522496, rel=0.05)
    assert second["kvBytesPerToken"] == 131072
    assert second["wouldFit"]


def test_standard_input_is_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(written(tmp_path, served(LLAMA_8B, "nvidia-a100-80g"))).read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run("check", "-f", "-").status == 0


@pytest.mark.parametrize("form", ["file", "folder", "downloaded", "file://"])
def test_a_configuration_is_taken_from_where_it_lies(run: Run, form: str, tmp_path: Path) -> None:
    source = "hf://acme/tiny@v1" if form != "file://" else f"file://{tmp_path}/tiny"
    folder = tmp_path / "models" / folder_name(source) if form == "downloaded" else tmp_path / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    given = {"file": ["--config", str(folder / "config.json")], "folder": ["--config", str(folder)]}.get(form, [])
    ended = run("check", "-f", written(tmp_path, served(source)), *given)
    assert ended.status == 0, ended.err
    assert str(folder) in ended.out


def test_a_gguf_is_not_reckoned_as_floats_by_the_configuration_beside_it(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tiny-Q4_0.gguf").touch()
    file = written(tmp_path, served(f"file://{folder}"))
    ended = run("check", "-f", file)
    assert ended.status == 2 and f"file://{folder / 'tiny-Q4_0.gguf'} is a GGUF file" in ended.err
    ended = run("check", "-f", file, "--config", "hf://acme/tiny:Q4_0")
    assert ended.status == 2 and "--config hf://acme/tiny:Q4_0 is a GGUF file" in ended.err
    (folder / "config.json").write_text(json.dumps(TINY))
    ended = run("check", "-f", written(tmp_path, served(f"file://{folder}/tiny-Q4_0.gguf")), "--config", str(folder))
    assert ended.status == 2 and "m0: model.source file://" in ended.err


def test_modelopts_own_file_counts_beside_a_configuration(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    file = written(tmp_path, served(f"file://{tmp_path}"))
    (whole,) = run("check", "-f", file, "-o", "json").json
    quantized = tmp_path / "hf_quant_config.json"
    quantized.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}))
    for given in ([], ["--config", str(tmp_path)]):
        (found,) = run("check", "-f", file, *given, "-o", "json").json
        assert found["weightsBytes"] < whole["weightsBytes"]
    quantized.write_text("[")
    ended = run("check", "-f", file)
    assert ended.status == 2 and f"{quantized} is no JSON" in ended.err


def test_adapters_and_a_model_that_guesses_are_counted(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_text(json.dumps(TINY))
    guessing = {"method": "draft", "source": f"file://{small}"}
    spec = served(LLAMA_8B, "nvidia-h100", maxModelLen=2048, speculative=guessing)
    spec["adapters"] = [{"name": "polite", "source": "hf://acme/polite"}]
    ended = run("check", "-f", written(tmp_path, spec), "-o", "json")
    assert ended.status == 0, ended.err
    (found,) = ended.json
    assert found["adaptersBytes"] == 4 * 41_943_040 * 2 and found["draftBytes"] > 0
    assert not any("not reckoned" in each for each in found["assumed"])
    table = run("check", "-f", written(tmp_path, spec)).out
    assert "places for adapters" in table and "what guesses tokens" in table
    (small / "config.json").write_text("{}")
    ended = run("check", "-f", written(tmp_path, spec))
    assert ended.status == 2 and "m0: engine.speculative.source: config.json:" in ended.err
    (small / "config.json").unlink()
    ended = run("check", "-f", written(tmp_path, spec))
    assert ended.status == 0
    assert "engine.speculative.source, whose config.json is not at hand, takes memory that is not reckoned" in ended.out


def test_the_hub_is_asked_only_where_that_is_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"v1": {"config.json": json.dumps(TINY).encode()}}
    with loopback_hub(LoopbackHub({"acme/tiny": HubModel(files)})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        file = written(tmp_path, served("hf://acme/tiny@v1"))
        ended = run("check", "-f", file)
        assert ended.status == 2
        assert "model.source hf://acme/tiny@v1 is not at hand" in ended.err
        assert "--config hf://acme/tiny@v1" in ended.err
        assert run("check", "-f", file, "--config", "hf://acme/tiny@v1").status == 0
        ended = run("check", "-f", file, "--config", "hf://acme/other")
        assert (ended.status, "/acme/other/resolve/main/config.json answered 40" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"model": {}}, "m0: spec.model.source: Required value"),
        ({"model": {"source": "nowhere"}}, "model.source"),
        (served(LLAMA_8B, maxModelLength=5), "m0: spec.engine.maxModelLength: is unknown"),
        (served(LLAMA_8B, maxModelLen="much"), "spec.engine.maxModelLen"),
        (served(LLAMA_8B, "huge"), "resources.profile 'huge' is not in the operator's settings"),
        (served(LLAMA_8B, tensorParallelSize=2), "engine.tensorParallelSize is 2: make them equal"),
        (served(LLAMA_8B, extraArgs=["--max-model-len=long"]), "engine.extraArgs: --max-model-len long"),
        (served(LLAMA_8B, extraArgs=["--gpu-memory-utilization=nan"]), "--gpu-memory-utilization: must be from 0.01"),
        (served(LLAMA_8B, extraArgs=["--gpu-memory-utilization=5"]), "--gpu-memory-utilization: must be from 0.01"),
        (served(LLAMA_8B, extraArgs=["--dtype=int3"]), "engine.extraArgs: --dtype int3 is none of auto, float32"),
        (served(LLAMA_8B, extraArgs=["--kv-cache-dtype=int3"]), "--kv-cache-dtype int3 is none of auto"),
        (served(LLAMA_8B, extraArgs=["--head-quantization=x"]), "--head-quantization x is none of int8"),
        (served(LLAMA_8B, extraArgs=[f"--block-size={'9' * 400}"]), "is not a whole number above 0"),
        (served(LLAMA_8B, extraArgs=[f"--kv-cache-memory={'9' * 400}"]), "is no memory that a machine has"),
        (served(LLAMA_8B, kvCache={"memory": "1e999999"}), "spec.engine.kvCache.memory"),
        (served("pvc://models/mine"), "model.source pvc://models/mine is not at hand"),
        (served(f"{LLAMA_8B}:Q4_K_M"), f"m0: model.source {LLAMA_8B}:Q4_K_M is a GGUF file, whose tensors"),
        (served("pvc://models/mine.gguf"), "m0: model.source pvc://models/mine.gguf is a GGUF file"),
    ],
)
def test_bad_input_ends_with_2_and_names_the_field(run: Run, spec: dict[str, Any], told: str, tmp_path: Path) -> None:
    ended = run("check", "-f", written(tmp_path, spec))
    assert ended.status == 2
    assert told in ended.err
    assert "hint: " in ended.err


def test_another_server_is_passed_over_and_told_of(run: Run, tmp_path: Path) -> None:
    other = served(LLAMA_8B, type="vLLM", image="vllm/vllm-openai:v0.22.0")
    ended = run("check", "-f", written(tmp_path, other, served(LLAMA_8B, "nvidia-h200")))
    assert ended.status == 0 and "m0: not checked: engine.type is vLLM" in ended.out and "m1: fits" in ended.out
    ended = run("check", "-f", written(tmp_path, other, served(LLAMA_70B)), "-o", "json")
    assert (ended.status, [each["fits"] for each in ended.json]) == (1, [None, False])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: [", "cannot be read"),
        ("", "there is no LLMDeployment"),
        ("[1]", "a document is no object"),
        ("kind: LLMDeployment", "metadata.name: Required value"),
        ("{kind: List, items: 5}", "there is no LLMDeployment"),
        ("on: 2026-99-99", "cannot be read"),
        ("[" * 3000, "cannot be read"),
    ],
)
def test_files_that_are_none_are_refused(run: Run, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(text)
    ended = run("check", "-f", str(tmp_path / "file.yaml"))
    assert (ended.status, told in ended.err) == (2, True), ended.err
    assert run("check", "-f", str(tmp_path / "absent.yaml")).status == 2


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"architectures": ["LlamaForCausalLM"]}', "[" * 30_000]
    + [
        json.dumps({**TINY, **changes})
        for changes in (
            {"hidden_size": float("nan")}, {"vocab_size": float("inf")}, {"num_hidden_layers": 10**300},
            {"num_hidden_layers": 10**12}, {"max_position_embeddings": 10**400}, {"tie_word_embeddings": "false"},
        )
    ],
)  # fmt: skip
def test_a_configuration_that_is_none_is_refused(run: Run, content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    ended = run("check", "-f", written(tmp_path, served("hf://acme/tiny")), "--config", str(tmp_path))
    assert ended.status == 2
    assert "config.json" in ended.err


def test_profiles_are_those_of_settings_or_of_values(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path, served(LLAMA_8B, "mine", maxModelLen=8192))
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("profiles: {mine: {limits: {nvidia.com/gpu: 1, memory: 64Gi}, gpuMemory: 44Gi}, gone: null}")
    assert run("check", "-f", file, "--profiles", str(profiles)).status == 0
    profiles.write_text("profiles: {mine: {limits: {nvidia.com/gpu: 1}}}")
    ended = run("check", "-f", file, "--profiles", str(profiles))
    assert ended.status == 2
    assert "m0: cannot be known: weights take 15.0 GiB" in ended.out
    assert "write profiles.mine.gpuMemory into the operator's settings" in ended.out
    profiles.write_text("profiles: {mine: {gpuMem: 5}}")
    ended = run("check", "-f", file, "--profiles", str(profiles))
    assert (ended.status, "profiles.mine.gpuMem" in ended.err) == (2, True)
    assert run("check", "-f", str(EXAMPLES / "01-dinghy.yaml"), "--profiles", str(CHART)).status == 0


def test_no_example_asks_for_what_does_not_fit(run: Run) -> None:
    for example in sorted(EXAMPLES.glob("*.yaml")):
        assert run("check", "-f", str(example)).status != 1, example


def test_the_catalogue_is_listed(run: Run) -> None:
    ended = run("models", "catalog")
    assert ended.status == 0
    assert ended.out == run("models").out
    names, lines = set(presets()), ended.out.splitlines()[1:]
    assert {line.split()[0] for line in lines} == names and len(lines) == len(names), (
        "no name is cut, or takes two lines"
    )
    small = run("models", "catalog", "list", "--profile", "cpu-small").out.splitlines()[1:]
    assert {line.split()[2] for line in small} == {"cpu-small"}
    listed = {each["name"]: each for each in run("models", "catalog", "list", "-o", "json").json}
    assert listed["qwen3-8b"]["profile"] == "nvidia-a100-80g"
    assert listed["qwen3-8b"]["weightsBytes"] == pytest.approx(16.4e9, rel=0.05)
    assert listed["qwen3-8b"]["licence"] == "Apache-2.0"
    coders = run("models", "catalog", "list", "--purpose", "code")
    assert {line.split()[1] for line in coders.out.splitlines()[1:]} == {"code"}
    assert "qwen3-coder-30b-a3b-instruct" in coders.out and "qwen3-8b" not in coders.out


def test_a_preset_is_printed_to_be_applied_and_checks(run: Run, tmp_path: Path) -> None:
    ended = run("models", "catalog", "show", "llama-3-1-8b-instruct", "-o", "yaml")
    assert ended.status == 0
    manifest = yaml.safe_load(ended.out)
    assert manifest["spec"]["model"]["source"] == "hf://meta-llama/Llama-3.1-8B-Instruct@main"
    assert manifest["spec"]["model"]["credentials"] == {"secretName": "hub"}
    (tmp_path / "preset.yaml").write_text(ended.out)
    assert run("check", "-f", str(tmp_path / "preset.yaml")).status == 0
    assert "A token" in ended.out and "Licence: Llama 3.1 Community." in ended.out
    assert "A token" not in run("models", "catalog", "show", "qwen3-8b").out


def test_a_preset_that_is_none_is_refused_with_the_nearest(run: Run) -> None:
    ended = run("models", "catalog", "show", "qwen-8b")
    assert ended.status == 2
    assert "hint: did you mean qwen3-8b" in ended.err


def _without_frames(text: str) -> str:
    return " ".join(re.sub("[│┌┐└┘├┤┬┴┼─]", " ", text).split())


def test_the_guide_shows_what_is_printed(run: Run, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "fits.md").read_text()
    (tmp_path / "skipper.yaml").write_text(guide.partition("<<'EOF'\n")[2].partition("\nEOF")[0])
    shown = guide.partition("```text\n")[2].partition("```")[0].splitlines()
    printed = _without_frames(run("check", "-f", str(tmp_path / "skipper.yaml")).out)
    for line in shown:
        assert _without_frames(line).removesuffix("…").strip() in printed, line
