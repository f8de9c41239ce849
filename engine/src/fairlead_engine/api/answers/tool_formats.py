"""How models write calls of tools, by the name of `--tool-call-parser`."""

from fairlead_engine.api.answers.code_formats import Gemma4, Lfm2, Olmo3, Pythonic
from fairlead_engine.api.answers.named_formats import Apertus, DeepSeek, Functionary, Harmony, KimiK2, Mistral, Solar
from fairlead_engine.api.answers.object_formats import (
    CohereCommand,
    GigaChat,
    Granite,
    Hermes,
    Hunyuan,
    Llama3,
    Nemotron,
    Phi4,
)
from fairlead_engine.api.answers.tagged_formats import DeepSeekTags, Glm, Hy3, MiniMax, Qwen3Coder, SeedOss
from fairlead_engine.api.answers.tool_format import ToolFormat

TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "llama3_json": Llama3,
    "mistral": Mistral,
    "deepseek_v3": DeepSeek,
    "harmony": Harmony,
    "glm45": Glm,
    "qwen3_coder": Qwen3Coder,
    "minimax_m2": MiniMax,
    "seed_oss": SeedOss,
    "kimi_k2": KimiK2,
    "deepseek_v32": DeepSeekTags,
    "hunyuan_a13b": Hunyuan,
    "hy_v3": Hy3,
    "cohere_command3": CohereCommand,
    "granite": Granite,
    "phi4_mini_json": Phi4,
    "nemotron": Nemotron,
    "lfm2": Lfm2,
    "olmo3": Olmo3,
    "gemma4": Gemma4,
    "gigachat3": GigaChat,
    "solar_open": Solar,
    "apertus": Apertus,
    "functionary": Functionary,
    "pythonic": Pythonic,
}
