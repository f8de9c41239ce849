"""What each family of models can do, found by doing it: tiny random weights, and transformers as the reference.

`ROWS` has the families, `COLUMNS` what is tried of each. A family of `tiny_families` or of
`encoder_checkpoints.ENCODER_FAMILIES` has its row by that; one that is written otherwise is an entry of `OTHERS`. A way
to do something that is refused is noted with what the engine says; one that gives wrong numbers raises AssertionError.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from fairlead_common.models.model_config import ModelConfig
from fairlead_common.openai.chat import ChatTemplate
from fairlead_engine.api.answers.answer_formats import INSTRUCTED, TOOL_FORMATS, choose_formats
from fairlead_engine.api.answers.reader import AnswerReader
from fairlead_engine.api.detokenizer import TextDelta
from fairlead_engine.api.schemas import ChatRequest
from fairlead_engine.api.tool_use import tool_use
from fairlead_engine.config import QUANTIZATIONS
from fairlead_engine.errors import EngineError
from fairlead_engine.llm import LLM, Completion
from fairlead_engine.model.loading import read_any_config
from fairlead_engine.types import FinishReason, Pooling, SamplingParams, SequenceOutput
from fairlead_engine_testing.adapters import adapted_by_peft, expert_parameters
from fairlead_engine_testing.checkpoints import write_guessing_checkpoint, write_random_checkpoint
from fairlead_engine_testing.eagle_heads import eagle_fields, write_eagle_head
from fairlead_engine_testing.encoder_checkpoints import ENCODER_FAMILIES, model_type, write_encoder, write_word_pieces
from fairlead_engine_testing.foreign_checkpoints import write_foreign_checkpoint
from fairlead_engine_testing.gemma_checkpoints import write_seeing_gemma
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.family import TinyFamily
from fairlead_engine_testing.unlisted_models import list_models
from fairlead_engine_testing.vision_checkpoints import VISION_KINDS, seeing_class, write_vision_model
from fairlead_engine_testing.written_templates import GEMMA

_SEEING_CALLS: Mapping[str, str] = {"qwen2_5_vl": "hermes", "qwen3_vl": "hermes", "qwen3_vl_moe": "hermes"}
_EACH = "{% for key, value in call.function.arguments.items() %}"
_VALUE = "{{ value if value is string else value | tojson }}"
CALLS: Mapping[str, str] = {
    "apertus": '<|tools_prefix|>[{"NAME": ARGUMENTS}]<|tools_suffix|>',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "command": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "NAME", "parameters": ARGUMENTS}\n]'
    "<|END_ACTION|>",
    "function_calls": "<function_calls>NAME({% for key, value in call.function.arguments.items() %}{{ key }}="
    "{{ value | tojson }}{{ ', ' if not loop.last }}{% endfor %})</function_calls>",
    "gemma4": GEMMA + "<|tool_call>call:NAME{% raw %}{{% endraw %}" + _EACH + "{{ key }}:{{ written(value) }}"
    "{{ ',' if not loop.last }}{% endfor %}{% raw %}}{% endraw %}<tool_call|>",
    "glm45": "<tool_call>NAME\n" + _EACH + "<arg_key>{{ key }}</arg_key>\n<arg_value>" + _VALUE + "</arg_value>\n"
    "{% endfor %}</tool_call>",
    "granite": '<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]',
    "harmony": "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>",
    "hermes": '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
    "lfm2": "<|tool_call_start|>[NAME({% for key, value in call.function.arguments.items() %}{{ key }}="
    "{{ value | tojson }}{{ ', ' if not loop.last }}{% endfor %})]<|tool_call_end|>",
    "llama3_json": '{"name": "NAME", "parameters": ARGUMENTS}',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="NAME">\n' + _EACH + '<parameter name="{{ key }}">' + _VALUE
    + "</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "NAME", "arguments": ARGUMENTS}]',
    "nemotron": '<TOOLCALL>[{"name": "NAME", "arguments": ARGUMENTS}]</TOOLCALL>',
    "seed_oss": "<seed:tool_call>\n<function=NAME>\n" + _EACH + "<parameter={{ key }}>" + _VALUE
    + "</parameter>\n{% endfor %}</function>\n</seed:tool_call>",
    "phi4": '<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]<|/tool_call|>',
}  # fmt: skip
"""A call as a template writes it into the chat, which is how its model writes it."""
_TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
_CALL = {"name": "tide", "arguments": {"port": "Oslo", "days": 2}}

PROMPT = [7 + (5 * index + index * index // 3) % 40 for index in range(24)]
_REPEATED = [9, 17, 30, 11] * 6
_GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
_REPEATS = SamplingParams(temperature=0.0, max_tokens=40, repetition_penalty=0.5)
"""Greedy, and repeats itself: else some models say nothing twice, and no n-gram is found."""
_EXACT = 1e-3
"""Most that a log-probability in float32 may be off."""
_ROUNDED = 2.0
"""Mean errors of other number formats are at most so many times those that transformers has in them."""
_QUANTISED = {"int8": 0.1, "int8-weight-only": 0.08, "int4-weight-only": 0.5, "fp8": 0.25}
"""Mean errors over the deviation of the reference's log-probabilities; of noise it is above 1."""
_RECURRENT = 1.6
"""Factor of these where states carry the errors of earlier tokens along."""
_KEEPS_STATES = ("Bamba", "FalconH1", "GraniteMoeHybrid", "Lfm", "NemotronH", "Qwen3Next", "Qwen3_5")
"""Beginnings of their architectures."""
_SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_threads": 1, "max_model_len": 90}
_DTYPES = ("float32", "bfloat16")
_ADAPTED = {
    "attention": re.compile(r".*(attn|mamba|conv)\.\w*proj\w*|.*mixer\.[qkvo]_proj"),
    "feed-forward": re.compile(
        r".*\.(\w*mlp|block_sparse_moe|feed_forward)\.(.*\.)?(\w+_proj|w[123]|\w+_linear|gate|wg|router|layer|\w+_gate)"
        r"|.*mixer\.(.*\.)?(up|down)_proj"
    ),
}
"""Names of the linear layers that an adapter may change: recurrent ones and routers among them."""
_RENAMED = (".self_attn.gate_proj", ".self_attn.g_proj")
"""What files call LFM3's gates of heads, and what transformers and therefore PEFT call them."""
_MERGED = "merged at load"
_EXPERTS = "experts"
"""Those that transformers stores as one parameter for all, which PEFT adapts by `target_parameters`."""

Found = dict[str, str | None]
"""Way to do something → None, or the sentence that it is refused with."""


@dataclass(frozen=True)
class Row:
    """A family: how to write a tiny model of it, with a tokenizer, into a folder."""

    architecture: str
    """As `config.json` names it."""
    write: Callable[[Path], object]
    calls: str | None = None
    """How its makers' template writes calls; None = it knows of no tools."""
    generates: bool = True
    reference: Any = transformers.AutoModelForCausalLM
    """What loads it in transformers."""
    stands_for: str = ""
    """What else is like it, as the page says it."""


def _decoder(family: TinyFamily) -> Row:
    def write(folder: Path) -> None:
        write_random_checkpoint(folder, family())
        write_letters(folder)

    return Row(family()["architectures"][0], write, family.calls)


def _encoder(name: str) -> Row:
    def write(folder: Path) -> None:
        write_encoder(folder, name)
        write_word_pieces(folder)

    kind: Any = transformers.MODEL_MAPPING[type(transformers.AutoConfig.for_model(model_type(name)))]
    return Row(str(kind.__name__), write, generates=False, reference=transformers.AutoModel)


def _seeing(kind: str) -> Row:
    model = seeing_class(kind)
    return Row(
        model.__name__, lambda folder: write_vision_model(folder, kind), calls=_SEEING_CALLS.get(kind), reference=model
    )


def _write_foreign(folder: Path) -> None:
    write_foreign_checkpoint(folder, "gpt_neox")
    write_letters(folder)


OTHERS: Mapping[str, Row] = {
    "gemma3_seeing": Row(
        "Gemma3ForConditionalGeneration",
        write_seeing_gemma,
        reference=transformers.Gemma3ForConditionalGeneration,
    ),
    **{kind: _seeing(kind) for kind in VISION_KINDS},
    "gpt_neox": Row(
        "GPTNeoXForCausalLM",
        _write_foreign,
        stands_for="and [other decoders](../guides/first-model.md#other-decoders)",
    ),
}
"""Families whose tiny models are not of `checkpoints`."""
ROWS: Mapping[str, Row] = {
    **{name: _decoder(family) for name, family in FAMILIES.items()},
    **OTHERS,
    **{name: _encoder(name) for name in ENCODER_FAMILIES},
}


def precision(row: Row, folder: Path) -> Found:
    """Number formats: float32 is the reference's, others are as near to it as the reference's own in that format."""
    exact = _reference(row, folder, torch.float32)
    found: Found = {}
    for name in _DTYPES:
        theirs = _reference(row, folder, getattr(torch, name))

        def compared(name: str = name, theirs: Tensor = theirs) -> None:
            ours, wanted, also = _told(row, folder, exact, theirs, dtype=name)
            if name == "float32":
                assert float((ours - wanted).abs().max()) < _EXACT
            most = _ROUNDED * float((also - wanted).abs().mean()) + _EXACT
            assert float((ours - wanted).abs().mean()) < most, f"{name} of {row.architecture} is off"

        found[name] = _refusal(compared, folder)
    return found


def lora(row: Row, folder: Path) -> Found:
    """An adapter of attention's projections changes what is told, to what the weights tell that it is added to; so does
    one of the feed-forward, of routers and of experts as linear layers; and one of experts as parameters, to what PEFT
    tells."""

    def compared(part: str) -> None:
        adapter, merged = folder.with_name(f"{part}-adapter"), folder.with_name(f"{part}-merged")
        _write_adapter(adapter, folder, _ADAPTED[part])
        shutil.copytree(folder, merged)
        _merge(merged, adapter)
        model = LLM(str(folder), max_loras=1, **_SETTINGS)
        model.load_adapter("one", adapter)
        sampling = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=4)
        plain, adapted = (model.generate(PROMPT, sampling, adapter=name)[0] for name in (None, "one"))
        [wanted] = LLM(str(merged), **_SETTINGS).generate(PROMPT, sampling)
        assert adapted.token_ids == wanted.token_ids
        assert float((_own(adapted) - _own(wanted)).abs().max()) < _EXACT
        assert float((_own(adapted) - _own(plain)).abs().max()) > 10 * _EXACT, "it changes nothing"

    parts = _ADAPTED if row.generates else ["attention"]
    found = {part: _refusal(lambda part=part: compared(part), folder) for part in parts}  # type: ignore[misc]
    network = row.reference.from_pretrained(folder, dtype=torch.float32) if row.generates else None
    if row.stands_for:
        return {**found, _MERGED: _refusal(lambda: _compare_merged(folder, network), folder)}
    if network is None or not (names := expert_parameters(network)):
        return found
    adapted = adapted_by_peft(network, folder.with_name("experts-adapter"), names)
    return {**found, _EXPERTS: _refusal(lambda: _compare_experts(folder, adapted), folder)}


def _compare_merged(folder: Path, network: Any) -> None:
    """Of all linear layers."""
    adapter = folder.with_name("merged-adapter")
    adapted = adapted_by_peft(network, adapter, [], target_modules="all-linear")
    model = LLM(str(folder), merged_adapter=str(adapter), **_SETTINGS)
    [found] = model.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1))
    with torch.inference_mode():
        wanted = adapted(torch.tensor([PROMPT])).logits[0, :-1].float().log_softmax(-1)
    own = wanted.gather(1, torch.tensor(PROMPT[1:]).unsqueeze(1)).squeeze(1)
    assert float((_own(found) - own).abs().max()) < _EXACT


def _compare_experts(folder: Path, adapted: Any) -> None:
    model = LLM(str(folder), max_loras=1, **_SETTINGS)
    model.load_adapter("one", folder.with_name("experts-adapter"))
    sampling = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=4)
    plain, found = (model.generate(PROMPT, sampling, adapter=name)[0] for name in (None, "one"))
    tokens = [*PROMPT, *found.token_ids]
    with torch.inference_mode():
        wanted = adapted(torch.tensor([tokens[:-1]])).logits[0].float().log_softmax(-1)
    own = wanted.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    assert float((_own(found) - own[: len(PROMPT) - 1]).abs().max()) < _EXACT
    assert float((wanted.max(-1).values - own)[len(PROMPT) - 1 :].max()) < _EXACT, "tokens are others"
    assert float((_own(found) - _own(plain)).abs().max()) > 10 * _EXACT, "it changes nothing"


def tools(row: Row, folder: Path) -> Found:
    """A call that the template writes is read back as the call that it is; or requests with tools are refused."""
    if not row.generates:
        return {"tools": _refusal(lambda: _generate(folder, PROMPT), folder)}
    source = _template(row.calls)
    formats = choose_formats(source, "auto", "auto")
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "a"}], tools=[_TOOL])
    refusal = _refusal(lambda: tool_use(request, formats), folder)
    if refusal is not None:
        return {"tools": refusal}
    name = next((name for name, kind in TOOL_FORMATS.items() if type(formats.tools) is kind), INSTRUCTED)
    call = {"type": "function", "function": _CALL}
    template = ChatTemplate(source, {}, instructs_tools=name == INSTRUCTED)
    text = template.render([{"role": "assistant", "content": None, "tool_calls": [call]}])
    delta = AnswerReader(_Said(text), formats, ("tide",), has_begun_reasoning=False).push(  # type: ignore[arg-type]
        SequenceOutput(request_id="r", new_token_ids=[1], finish_reason=FinishReason.STOP)
    )
    called = "".join(each.name or "" for each in delta.calls)
    arguments = json.loads("".join(each.arguments for each in delta.calls))
    assert (called, arguments, delta.text) == (_CALL["name"], _CALL["arguments"], "")
    return {name: None}


def speculative(row: Row, folder: Path) -> Found:
    """Guesses by n-grams, by a draft model, by Medusa's heads and by EAGLE-3's leave greedy answers as they are."""
    plain = None if not row.generates else _generate(folder, _REPEATED, _REPEATS)

    def compared(method: str, **settings: Any) -> None:
        model = LLM(str(folder), speculative_method=method, num_speculative_tokens=3, **settings, **_SETTINGS)
        [found] = model.generate(_REPEATED, _REPEATS)
        assert plain is not None and found.token_ids == plain.token_ids
        assert model.engine.load.num_draft_tokens, "nobody has guessed"

    return {
        "ngram": _refusal(lambda: compared("ngram"), folder),
        "draft": _refusal(lambda: compared("draft", speculative_model=_write_draft(row, folder)), folder),
        "medusa": _refusal(lambda: compared("medusa", speculative_model=_write_heads(folder)), folder),
        "eagle3": _refusal(lambda: compared("eagle3", speculative_model=_write_eagle(folder)), folder),
    }


def guessed(row: Row, folder: Path) -> Found:
    """`speculative`; and guesses by a layer that the family's checkpoints bring along, where they bring one."""
    found = speculative(row, folder)
    if not row.generates or (promising := write_guessing_checkpoint(folder)) is None:
        return found
    plain = _generate(write_letters(promising), _REPEATED)

    def compared() -> None:
        model = LLM(str(promising), speculative_method="mtp", num_speculative_tokens=3, **_SETTINGS)
        [answer] = model.generate(_REPEATED, SamplingParams(temperature=0.0, max_tokens=24))
        assert answer.token_ids == plain.token_ids
        assert model.engine.load.num_draft_tokens, "nobody has guessed"

    return {**found, "mtp": _refusal(compared, promising)}


def quantised(row: Row, folder: Path) -> Found:
    """Weights that are rounded while they are loaded: what is told stays within bounds."""
    exact = _reference(row, folder, torch.float32)

    def compared(name: str) -> None:
        ours, wanted, _ = _told(row, folder, exact, exact, quantization=name)
        assert ours.isfinite().all()
        error = float((ours - wanted).abs().mean() / exact.std())
        most = _QUANTISED[name] * (_RECURRENT if row.architecture.startswith(_KEEPS_STATES) else 1.0)
        assert 0 < error < most, f"{name} of {row.architecture} is {error:.3f} deviations off"

    return {name: _refusal(lambda name=name: compared(name), folder) for name in QUANTIZATIONS}  # type: ignore[misc]


COLUMNS: Mapping[str, Callable[[Row, Path], Found]] = {
    "Number formats": precision,
    "LoRA": lora,
    "Tools": tools,
    "Speculative": guessed,
    "Quantised": quantised,
}


def try_family(name: str, column: str, folder: Path) -> Found:
    """What is found of one family in one column; writes below `folder`, which is empty. Raises AssertionError where
    something is done and done wrong."""
    list_models()
    row = ROWS[name]
    row.write(folder / "model")
    return COLUMNS[column](row, folder / "model")


def _refusal(run: Callable[[], object], folder: Path) -> str | None:
    """None where it is done."""
    try:
        run()
    except EngineError as error:
        return error.message.replace(str(folder), "the model").replace(f"{folder.parent}/", "")
    return None


def _generate(folder: Path, prompt: list[int], sampling: SamplingParams = _GREEDY) -> Completion:
    [found] = LLM(str(folder), **_SETTINGS).generate(prompt, sampling)
    return found


def _reference(row: Row, folder: Path, dtype: torch.dtype) -> Tensor:
    """float32 [tokens, vocab], log-probabilities of what comes behind each token of `PROMPT`; of an encoder [hidden],
    their mean hidden state, of length 1."""
    model = row.reference.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        told = model(torch.tensor([PROMPT]))
    if row.generates:
        return told.logits[0].float().log_softmax(-1)  # type: ignore[no-any-return]
    return torch.nn.functional.normalize(told.last_hidden_state[0].float().mean(0), dim=0)


def _told(row: Row, folder: Path, *references: Tensor, **settings: Any) -> list[Tensor]:
    """Numbers that the engine tells of `PROMPT`, and those of the references in their places."""
    model = LLM(str(folder), **{**_SETTINGS, **settings})
    if not row.generates:
        return [torch.tensor(model.embed(PROMPT, Pooling.MEAN)[0]), *references]
    [found] = model.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=20))
    places = [(at, *each) for at, entry in enumerate(found.prompt_logprobs) for each in entry.top]
    rows, ids, values = zip(*places, strict=True)
    assert set(rows) == set(range(len(PROMPT) - 1))
    return [torch.tensor(values), *(reference[list(rows), list(ids)] for reference in references)]


def _own(completion: Completion) -> Tensor:
    """Log-probabilities of the prompt's tokens."""
    return torch.tensor([each.logprob for each in completion.prompt_logprobs])


def _write_draft(row: Row, folder: Path) -> str:
    """The model itself; for one that keeps states, which is no draft model, a Llama with the same vocabulary."""
    found = read_any_config(folder) if row.generates else None
    if not isinstance(found, ModelConfig) or not found.recurrent:
        return str(folder)
    draft = write_random_checkpoint(folder.with_name("draft"), FAMILIES["llama"](vocab_size=found.vocab_size))
    for path in folder.glob("tokenizer*"):
        shutil.copy(path, draft)
    return str(draft)


def _write_heads(folder: Path) -> str:
    """Three heads that know as much as the embeddings do."""
    tensors = load_file(folder / "model.safetensors")
    table = next(tensor for name, tensor in tensors.items() if "embed" in name and tensor.dim() == 2)
    heads = folder.with_name("heads")
    heads.mkdir()
    save_file({f"{head}.0.weight": table.clone() for head in range(3)}, heads / "medusa_lm_head.safetensors")
    return str(heads)


def _write_eagle(folder: Path) -> str:
    """A head that sees what goes into the first and the last layer."""
    read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    read = read.get("text_config") or read
    last = read.get("num_hidden_layers", 1) - 1
    layers = {"eagle_aux_hidden_state_layer_ids": [0, last, last]}
    hidden_size, vocab_size = read.get("hidden_size", 64), read["vocab_size"]
    fields = eagle_fields(hidden_size, vocab_size, vocab_size // 2, **layers)
    return str(write_eagle_head(folder.with_name("eagle"), fields))


def _write_adapter(adapter: Path, folder: Path, adapted: "re.Pattern[str]") -> None:
    """As PEFT writes it, of the linear layers of these names."""
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, Tensor] = {}
    for name, weight in sorted(load_file(folder / "model.safetensors").items()):
        module, _, kind = name.rpartition(".")
        is_of_tower = "visual." in module or "vision_tower." in module
        is_linear = kind == "weight" and weight.dim() == 2 and not is_of_tower
        if is_linear and adapted.fullmatch(module):
            out_features, in_features = weight.shape
            module = module.replace(*_RENAMED)
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, in_features, generator=generator) / 8
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(out_features, 4, generator=generator) / 8
    fields: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none"}
    fields["target_modules"] = sorted({name.split(".")[-3] for name in tensors})
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def _merge(folder: Path, adapter: Path) -> None:
    """Adds what the adapter adds to the weights of a checkpoint."""
    tensors, parts = load_file(folder / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, down in parts.items():
        if name.endswith("lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            stored = module.replace(_RENAMED[1], _RENAMED[0])
            tensors[f"{stored}.weight"] += 2.0 * parts[name.replace("lora_A", "lora_B")] @ down
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _template(calls: str | None) -> str:
    """A chat template that writes calls in this way."""
    said = "<|start_header_id|>{{ message.role }}<|end_header_id|>" if calls == "llama3_json" else ""
    said += "{{ message.content }}"
    if calls is not None:
        written = CALLS[calls].replace("NAME", "{{ call.function.name }}")
        written = written.replace("ARGUMENTS", "{{ call.function.arguments | tojson }}")
        each = "{% for call in message.tool_calls %}" + written + "{% endfor %}"
        said = "{% if message.tool_calls %}" + each + "{% else %}" + said + "{% endif %}"
    return "{% for message in messages %}" + said + "{% endfor %}"


class _Said:
    """Stands for a detokenizer that has all of an answer."""

    num_tokens = 0

    def __init__(self, text: str) -> None:
        self._text = text

    def push(self, output: SequenceOutput) -> TextDelta:
        return TextDelta(self._text, [1], finish_reason=output.finish_reason)

    def take_begun(self, place: int) -> int:
        """Tokens are not counted."""
        return 0
