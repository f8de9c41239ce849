"""What an LLMDeployment of llama.cpp becomes."""

from typing import Any

import pytest
import yaml

from fairlead.api.llmdeployment import LLMDeployment, broken_rules
from fairlead.api.pod_spec import lasting_container
from fairlead.manifests.children import children
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fake_llama import parser as llama_parser
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(engine_image="fairlead/engine:test", allow_file_sources=True)
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"


def body(source: str, **engine: Any) -> dict[str, Any]:
    engine = {"type": "llama.cpp", "image": IMAGE, **engine}
    return stored("boat", "ships", model={"source": source}, engine=engine)


def built(source: str = "pvc://models/boat/q4.gguf", **engine: Any) -> tuple[Any, Any, Any]:
    """(the server's container, the front's, the front's configuration file)"""
    made = body(source, **engine)
    assert not broken_rules(made)
    config, deployment, _ = children(LLMDeployment.from_body(made), SETTINGS)
    pod = deployment["spec"]["template"]["spec"]
    return (
        lasting_container(pod, "engine"),
        lasting_container(pod, "front"),
        yaml.safe_load(config["data"]["engine.yaml"]),
    )


def test_the_server_gets_its_own_flags_and_the_images_own_command() -> None:
    server, front, config = built(
        maxModelLen=4096, maxNumSeqs=8, kvCache={"dtype": "int8", "memory": "1Gi", "blockSize": 32},
        reasoningParser="none", chatTemplate="{{ messages }}", extraArgs=["--threads", "4"],
    )  # fmt: skip
    assert server["image"] == IMAGE and "command" not in server
    said = llama_parser().parse_args(server["args"])
    assert said.model == "/models/boat/q4.gguf" and said.alias == "boat" and said.port == 8001
    assert (said.ctx_size, said.parallel, said.batch_size, said.cache_ram) == (8 * 4096, 8, "2048", "1024")
    assert said.cache_type_k == said.cache_type_v == "q8_0" and said.reasoning_format == "none"
    assert said.no_kv_unified and said.cache_prompt and said.threads == "4"
    assert said.chat_template == config["chat-template"] == "{{ messages }}"
    assert config["engine"] == "llama-cpp" and config["block-size"] == 32 and config["max-num-seqs"] == 8
    assert "/models/boat/q4.gguf" in front["args"] and "--events" not in front["args"]


def test_what_is_not_said_keeps_no_prompts_in_memory_that_the_pod_was_not_given() -> None:
    server, _, config = built(enablePrefixCaching=False)
    said = llama_parser().parse_args(server["args"])
    assert (said.ctx_size, said.parallel, said.cache_ram) == (0, 4, "0") and said.no_cache_prompt
    assert config["max-num-seqs"] == 4 and "block-size" not in config and config["enable-prefix-caching"] is False


@pytest.mark.parametrize("source", ["hf://org/boat-GGUF", "https://models.example/boat.gguf"])
def test_of_a_download_both_read_the_one_file(source: str) -> None:
    server, front, _ = built(source)
    model = llama_parser().parse_args(server["args"]).model
    assert model.startswith("/downloads/") and model.endswith("/model.gguf")
    assert front["args"][front["args"].index("--model") + 1] == model


def test_a_folder_on_a_claim_is_refused() -> None:
    (broken,) = broken_rules(body("pvc://models/boat"))
    assert "must name a .gguf file" in broken.message
