"""The engines that are not ours, by the name that `fairlead-engine front --engine` takes."""

from collections.abc import Callable, Mapping

from fairlead_engine.front.foreign_engine import ForeignEngine
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.llama_server import LlamaServer
from fairlead_engine.front.sglang_server import SglangServer
from fairlead_engine.front.vllm_server import VllmServer

KINDS: Mapping[str, Callable[[FrontConfig], ForeignEngine]] = {
    "vllm": VllmServer,
    "llama-cpp": LlamaServer,
    "sglang": SglangServer,
}
