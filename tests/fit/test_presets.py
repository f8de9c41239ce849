"""The catalogue: each preset against its own arithmetic, and as an LLMDeployment that the operator takes."""

from pathlib import Path

import pytest
import yaml

from fairlead.api.llmdeployment import LLMDeployment, LLMDeploymentSpec, broken_rules
from fairlead.api.quantities import parse_bytes
from fairlead.api.schema import decode
from fairlead.fit.fit_check import Verdict, check, read_shape
from fairlead.fit.memory_need import EngineChoice
from fairlead.fit.presets import PURPOSES, chart_profiles, config_of, presets
from fairlead.fit.replica_memory import replica_memory
from fairlead.operator_settings import OperatorSettings
from fairlead_common.models.choices import DeviceKind
from fairlead_common.wire.model_sources import parse_source
from fairlead_local.kubelet.node import CPU_OVERCOMMIT

CHART = Path(__file__).parents[2] / "charts" / "fairlead" / "values.yaml"
SETTINGS = OperatorSettings.from_mapping({"profiles": chart_profiles()})


def test_there_are_at_least_eighty_for_every_purpose() -> None:
    assert len(presets()) >= 80
    assert {preset.purpose for preset in presets().values()} == {*PURPOSES}
    assert all(preset.licence for preset in presets().values())


def test_the_profiles_are_the_charts() -> None:
    assert yaml.safe_load(CHART.read_text())["profiles"] == chart_profiles()
    built_in = OperatorSettings.from_mapping({}).all_profiles
    assert {name: built_in[name] for name in ("cpu-small", "cpu-large")} == {
        name: SETTINGS.all_profiles[name] for name in ("cpu-small", "cpu-large")
    }


def test_every_preset_for_processors_starts_in_local_mode_beside_the_dinghy() -> None:
    """On a laptop of two cores and 16 GB; without a chart's profiles."""
    profiles = OperatorSettings.from_mapping({}).all_profiles
    for name in {each.profile for each in presets().values() if each.profile.startswith("cpu")}:
        wanted = profiles[name].requests
        assert int(wanted["cpu"]) + 1 <= 2 * CPU_OVERCOMMIT and parse_bytes(wanted["memory"]) <= 14 * 2**30, name


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_what_it_says(name: str) -> None:
    preset = presets()[name]
    shape = read_shape(preset.config)
    assert shape.num_parameters == preset.parameters
    source = parse_source(preset.source)
    assert source.scheme == "demo" or source.revision == "main"
    body = preset.deployment()
    body["metadata"] |= {"namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    decode(LLMDeploymentSpec, body["spec"], "spec", strict=True)
    deployment = LLMDeployment.from_body(body)
    assert broken_rules(body) == []
    assert len(name) <= 40
    memory = replica_memory(deployment, SETTINGS)
    fit = check(shape, EngineChoice.of(deployment.spec), memory)
    assert fit.verdict is Verdict.FITS, fit.message
    wanted = deployment.spec.engine.max_model_len or shape.max_position_embeddings
    assert fit.max_model_len == wanted
    share = 0.9 if memory.device is DeviceKind.CUDA else 1.0
    needed = (fit.need.beside_cache + fit.need.kv(wanted)) / share
    assert needed <= parse_bytes(preset.memory) <= 1.05 * needed + 2**27
    assert memory.per_rank is not None and parse_bytes(preset.memory) <= memory.per_rank
    assert config_of(preset.source) is not None


def test_a_source_is_known_by_its_default_revision_only() -> None:
    assert config_of("hf://Qwen/Qwen3-8B") == config_of("hf://qwen/qwen3-8b@main") == presets()["qwen3-8b"].config
    assert config_of("hf://Qwen/Qwen3-8B@gptq-4bit") is None
    assert config_of("hf://Qwen/nothing") is config_of("s3://models/qwen3") is config_of("no source") is None
    assert config_of("demo://dinghy") is not None
