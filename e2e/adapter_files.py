"""Writes random adapters of the dinghy, as PEFT writes them: `python adapter_files.py FOLDER NAME[=RANK] …`.

Scenarios have it run where the files are to be, with the engine's Python: on a claim by a pod, or on this machine.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import fairlead_engine

RANK = 4


def write_adapter(folder: Path, rank: int = RANK) -> Path:
    """Strong enough to change what the dinghy says, and another one for each name."""
    model = json.loads((Path(fairlead_engine.__file__).parent / "demo/dinghy/config.json").read_text())
    random = np.random.default_rng(list(folder.name.encode()))
    hidden, width = model["hidden_size"], model["head_dim"]
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for name, heads in (("q_proj", model["num_attention_heads"]), ("v_proj", model["num_key_value_heads"])):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = random.normal(0, 0.3, (rank, hidden)).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = random.normal(0, 0.3, (heads * width, rank)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "adapter_model.safetensors"
    save_file(tensors, weights)
    weights.chmod(0o644)  # who writes them is not whom engines run as
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "dinghy",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        name, _, rank = wanted.partition("=")
        write_adapter(Path(sys.argv[1]) / name, int(rank or RANK))
