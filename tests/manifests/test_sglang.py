"""What an LLMDeployment of SGLang becomes."""

from typing import Any

import yaml

from fairlead.api.llmdeployment import LLMDeployment, ToolCallParser, broken_rules
from fairlead.api.pod_spec import lasting_container
from fairlead.manifests.children import children
from fairlead.manifests.foreign_servers import EVENTS
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fake_sglang import read_arguments
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(engine_image="fairlead/engine:test", allow_file_sources=True)
IMAGE = "lmsysorg/sglang:v0.5.23"


def built(**engine: Any) -> tuple[Any, Any, Any]:
    """(the server's container, the front's, the front's configuration file)"""
    resources = {"gpus": engine.get("tensorParallelSize", 1)}
    engine = {"type": "SGLang", "image": IMAGE, **engine}
    body = stored("boat", "ships", model={"source": "pvc://models/boat"}, engine=engine, resources=resources)
    assert not broken_rules(body)
    config, deployment, _ = children(LLMDeployment.from_body(body), SETTINGS)
    pod = deployment["spec"]["template"]["spec"]
    return (
        lasting_container(pod, "engine"),
        lasting_container(pod, "front"),
        yaml.safe_load(config["data"]["engine.yaml"]),
    )


def test_the_server_gets_its_own_flags() -> None:
    server, front, config = built(
        dtype="bfloat16", tensorParallelSize=2, maxModelLen=4096, maxNumSeqs=64, maxNumBatchedTokens=2048,
        kvCache={"blockSize": 32, "dtype": "fp8"}, toolCallParser="llama3_json", reasoningParser="mistral",
        extraArgs=["--mem-fraction-static", "0.8"],
    )  # fmt: skip
    assert server["image"] == IMAGE and server["command"] == ["sglang"]
    said = read_arguments(server["args"])
    assert (str(said.model), said.served_model_name, said.port) == ("/models/boat", "boat", 8001)
    assert (said.max_model_len, said.max_num_seqs, said.max_num_batched_tokens, said.block_size) == (4096, 64, 2048, 32)
    assert (said.dtype, said.tp_size, said.kv_cache_dtype) == ("bfloat16", "2", "fp8_e4m3")
    assert (said.tool_call_parser, said.reasoning_parser, said.mem_fraction_static) == ("llama3", "mistral", "0.8")
    assert config["engine"] == "sglang" and config["max-num-seqs"] == 64 and config["max-num-batched-tokens"] == 2048
    assert "/models/boat" in front["args"]


def test_priorities_are_as_here_and_events_go_where_the_front_listens() -> None:
    server, front, config = built()
    said = read_arguments(server["args"])
    assert said.enable_priority_scheduling and said.schedule_low_priority_values_first
    assert said.default_priority_value == "0"
    assert (said.events, said.replay) == (EVENTS, f"{EVENTS}-replay")
    assert front["args"][-4:] == ["--events", said.events, "--replay", said.replay]
    assert (said.block_size, said.max_num_seqs, said.max_num_batched_tokens) == (16, 256, 8192)
    assert config["max-num-seqs"] == 256 and config["max-num-batched-tokens"] == 8192


def test_without_prefix_caching_there_are_no_events() -> None:
    server, front, _ = built(enablePrefixCaching=False)
    said = read_arguments(server["args"])
    assert said.disable_radix_cache and said.events is None and "--events" not in front["args"]


def test_a_probe_computes_nothing() -> None:
    named = {each["name"]: each.get("value") for each in built()[0]["env"]}
    assert named["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false" and named["HF_HUB_OFFLINE"] == "1"


def test_every_parser_of_ours_has_a_name_there() -> None:
    names = {each: read_arguments(built(toolCallParser=str(each))[0]["args"]).tool_call_parser
             for each in ToolCallParser}  # fmt: skip
    left = {each for each, name in names.items() if name is None}
    assert left == {
        ToolCallParser.AUTO, ToolCallParser.NONE, ToolCallParser.SEED_OSS, ToolCallParser.HUNYUAN_A13B,
        ToolCallParser.HY_V3, ToolCallParser.COHERE_COMMAND3, ToolCallParser.GRANITE, ToolCallParser.PHI4_MINI_JSON,
        ToolCallParser.NEMOTRON, ToolCallParser.OLMO3, ToolCallParser.SOLAR_OPEN, ToolCallParser.APERTUS,
        ToolCallParser.FUNCTIONARY,
    }  # fmt: skip
