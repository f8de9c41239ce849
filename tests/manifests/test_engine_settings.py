"""What an LLMDeployment says of its engine, the engine's own reader takes from the ConfigMap, as it was meant."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.quantities import parse_duration
from fairlead.manifests.children import children
from fairlead.operator_settings import OperatorSettings
from fairlead_common.models.choices import SpeculativeMethod
from fairlead_common.settings import read_file
from fairlead_engine.commands.config_sources import from_settings
from fairlead_engine.config import EngineConfig, ServerConfig
from fairlead_engine.speculative.drafting import METHODS
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(engine_image="fairlead/engine:test", gateway_service="gw.fairlead-system.svc")

TEMPLATE = "{% for m in messages %}\n  # $(POD_IP): {{ m.content | tojson }}\n{%- endfor %}\n"
"""As people write one over several lines, with what YAML and kubelets have a meaning for."""


def read(folder: Path, **spec: Any) -> tuple[EngineConfig, ServerConfig]:
    """The engine's settings under this spec."""
    config, *_ = children(LLMDeployment.from_body(stored(**spec)), SETTINGS)
    file = folder / "engine.yaml"
    file.write_text(config["data"]["engine.yaml"], encoding="utf-8")
    return from_settings(read_file(file, (EngineConfig, ServerConfig)))


@pytest.mark.parametrize(
    "timeout", ["0s", "1ms", "500ms", "45s", "90s", "1m30s", "1.5h", "61m", "3661s", "15m", "24h", "36h", "7d"]
)
def test_every_way_to_write_a_drain_timeout_reaches_the_engine(tmp_path: Path, timeout: str) -> None:
    _, server = read(tmp_path, drain={"timeout": timeout})
    assert server.drain_timeout == pytest.approx(parse_duration(timeout))


@pytest.mark.parametrize("name", ["null", "true", "1", "1e3", "2026-01-01", "a:b", "no", "0x10", "1:30", "1.0", "NaN"])
def test_a_model_keeps_its_name_whatever_yaml_would_take_it_for(tmp_path: Path, name: str) -> None:
    engine, _ = read(tmp_path, model={"source": "demo://dinghy", "servedName": name})
    assert engine.name == name


def test_everything_else_that_is_said_of_an_engine_reaches_it(tmp_path: Path) -> None:
    engine, server = read(
        tmp_path,
        engine={
            "apiServers": 2, "chatTemplate": TEMPLATE, "toolCallParser": "mistral", "reasoningParser": "think",
            "dtype": "bfloat16", "quantization": "int8", "maxModelLen": 4096, "maxNumSeqs": 8,
            "speculative": {"method": "ngram", "numTokens": 3},
            "maxNumBatchedTokens": 256, "maxNumQueuedTokens": 1024, "enablePrefixCaching": False,
            "maxLoras": 2, "maxLoraRank": 8, "maxLoraExpertRank": 2, "maxCpuLoras": 6,
            "kvCache": {"blockSize": 32, "memory": "1.5Gi", "dtype": "int8"},
            "maxImages": 4, "maxImagePixels": 100352, "allowedMediaDomains": ["A.test", "[fd00::1]:8080"],
            "unknownFields": "refuse",
        },
    )  # fmt: skip
    assert engine == EngineConfig(
        model="demo://dinghy", served_name="dinghy", dtype="bfloat16", quantization="int8",
        max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=256, max_num_queued_tokens=1024,
        speculative_method="ngram", num_speculative_tokens=3,
        max_loras=2, max_lora_rank=8, max_lora_expert_rank=2, max_cpu_loras=6, adapter_folder="/adapters",
        enable_prefix_caching=False, block_size=32,
        kv_cache_dtype="int8", max_image_pixels=100352,
        kv_cache_memory=3 * 2**29, num_threads=engine.num_threads,
    )  # fmt: skip
    assert server.api_servers == 2
    assert (server.max_images, server.media_hosts) == (4, {"a.test", "[fd00::1]:8080"})
    assert (server.tool_call_parser, server.reasoning_parser) == ("mistral", "think")
    assert server.unknown_fields == "refuse" and server.chat_template == TEMPLATE


@pytest.mark.parametrize("method", SpeculativeMethod)
def test_every_way_to_guess_reaches_the_engine(tmp_path: Path, method: SpeculativeMethod) -> None:
    source = "demo://dinghy" if "speculative_model" in METHODS[method].settings else None
    said = {"method": str(method), "numTokens": 2} | ({"source": source} if source else {})
    engine, _ = read(tmp_path, engine={"speculative": said})
    found = engine.speculative_method, engine.speculative_model, engine.num_speculative_tokens
    assert found == (method, source, 2)
