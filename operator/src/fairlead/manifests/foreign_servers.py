"""The servers that are not ours, by `engine.type`."""

from collections.abc import Mapping

from fairlead.api.llmdeployment import EngineType
from fairlead.manifests.foreign_pod import ForeignServer
from fairlead.manifests.llama_cpp import LLAMA_CPP
from fairlead.manifests.sglang import SGLANG
from fairlead.manifests.vllm import VLLM

FOREIGN_SERVERS: Mapping[EngineType, ForeignServer] = {
    EngineType.VLLM: VLLM,
    EngineType.LLAMA_CPP: LLAMA_CPP,
    EngineType.SGLANG: SGLANG,
}
