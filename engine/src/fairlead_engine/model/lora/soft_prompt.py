"""Soft prompts as PEFT saves them: embeddings that stand before every prompt, of `PROMPT_TUNING` or `P_TUNING`.

Both save the same: what their training came to, as `prompt_embeddings` [virtual tokens, hidden]. Sources: prompt tuning
(arXiv 2104.08691), P-tuning (arXiv 2103.10385).
"""

import torch

from fairlead_engine.errors import AdapterError
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter
from fairlead_engine.model.lora.peft_files import FLOATS, PeftFiles

SOFT_PROMPTS = ("PROMPT_TUNING", "P_TUNING")
"""What `peft_type` calls them."""
_TENSOR = "prompt_embeddings"
_HARMLESS = frozenset(
    {
        "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type",
        "inference_mode", "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads",
        "num_layers", "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs",
        "encoder_reparameterization_type", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout",
    }
)  # fmt: skip
"""What is acted on, or says how the prompt was trained."""
_GENERATES = (None, "CAUSAL_LM")


def read_soft_prompt(files: PeftFiles, slots: AdapterSlots) -> HostAdapter:
    """The prompt, whole on every rank. Raises AdapterError, naming file and field or tensor."""
    fields = files.fields
    for name, value in fields.items():
        if name not in _HARMLESS and value not in (None, False, [], {}, ""):
            raise files.wrong(name, f"is {value!r}, which this engine does not know")
    if fields.get("task_type") not in _GENERATES:
        raise files.wrong("task_type", f"is {fields['task_type']!r}; only soft prompts of CAUSAL_LM are served")
    if fields.get("num_transformer_submodules") not in (None, 1):
        raise files.wrong("num_transformer_submodules", "must be 1: the model is one decoder")
    number = fields.get("num_virtual_tokens")
    if type(number) is not int or number < 1:
        raise files.wrong("num_virtual_tokens", f"must be a whole number above 0, not {number!r}")
    if fields.get("token_dim") not in (None, slots.hidden_size):
        problem = f"is {fields['token_dim']!r}, and embeddings of this model have {slots.hidden_size} numbers"
        raise files.wrong("token_dim", problem)
    with files.weights_open() as file, torch.inference_mode():
        if [*file.keys()] != [_TENSOR]:
            raise AdapterError(f"{files.weights} must hold one tensor, {_TENSOR}, and has {sorted(file.keys())}")
        shape = file.get_slice(_TENSOR).get_shape()
        if shape != [number, slots.hidden_size]:
            problem = f"should have shape {[number, slots.hidden_size]}, but has {shape}"
            raise AdapterError(f"{files.weights}: tensor {_TENSOR} {problem}")
        tensor = file.get_tensor(_TENSOR)
        if tensor.dtype not in FLOATS:
            held = str(tensor.dtype).removeprefix("torch.")
            raise AdapterError(f"{files.weights}: tensor {_TENSOR} holds {held}, no floats")
        prompt = tensor.to(slots.dtype).contiguous()
        if not bool(prompt.isfinite().all()):
            raise AdapterError(f"{files.weights}: {_TENSOR} holds what is no finite number in {slots.dtype}")
    return HostAdapter([], prompt.pin_memory() if slots.device.type == "cuda" else prompt)
