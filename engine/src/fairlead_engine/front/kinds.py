"""The engines that are not ours, by the name that `fairlead-engine front --engine` takes."""

from collections.abc import Callable, Mapping

from fairlead_engine.front.foreign_engine import ForeignEngine
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.llama_server import LlamaServer
from fairlead_engine.front.sglang_server import SglangServer
from fairlead_engine.front.vllm_server import VllmServer
from fairlead_protocol.http.origin import Origin


def _vllm(config: FrontConfig, origin: Origin) -> ForeignEngine:
    return VllmServer(origin, config.name, config.events, config.replay)


def _llama_cpp(config: FrontConfig, origin: Origin) -> ForeignEngine:
    return LlamaServer(origin, config.name, config.block_size)


def _sglang(config: FrontConfig, origin: Origin) -> ForeignEngine:
    return SglangServer(origin, config.name, config.events, config.replay)


KINDS: Mapping[str, Callable[[FrontConfig, Origin], ForeignEngine]] = {
    "vllm": _vllm,
    "llama-cpp": _llama_cpp,
    "sglang": _sglang,
}
