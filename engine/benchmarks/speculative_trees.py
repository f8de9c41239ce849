"""What trees of guesses bring over chains: tokens a step brings a sequence, of the dinghy with Medusa heads.

    python engine/benchmarks/speculative_trees.py [--lessons N] [--questions N] [--epochs N]

The heads are made here: trained on what the dinghy itself answers to questions that it was trained on, and measured on
held-out ones, greedy, in float32, so that answers are the same in each row. Counts, no times: they do not depend on the
machine.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import load_runner
from fairlead_engine.demo import resolve_model
from fairlead_engine.types import EngineRequest, SamplingParams
from fairlead_protocol.tokenizing import PromptTokenizer

NUM_HEADS = 4
LONGEST_ANSWER = 64
WAYS: list[dict[str, Any]] = [
    {},
    *({"num_speculative_tokens": places} for places in (2, 4)),
    {"speculative_tree": "[[0],[1],[0,0],[2],[0,1],[1,0],[0,0,0],[0,1,0],[0,0,0,0]]"},
    *({"speculative_tree": tree, "num_speculative_tokens": places} for places, tree in ((2, "2x6"), (4, "2x8"),
                                                                                     (4, "4x16"), (4, "8x32"))),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what trees of guesses bring over chains.")
    parser.add_argument("--lessons", type=int, default=600, help="questions to train on (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=100, help="held-out ones (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="(default: %(default)s)")
    arguments = parser.parse_args()
    lessons, questions = prompts("train", arguments.lessons), prompts("held-out", arguments.questions)
    model = resolve_model("demo://dinghy")
    answered, _ = answers(config_of(model), lessons)
    with tempfile.TemporaryDirectory() as folder:
        save_file(trained(model, lessons, answered, arguments.epochs), Path(folder) / "model.safetensors")
        plain: list[list[int]] | None = None
        print("guesses | verified a step | accepted of the first, second … place | tokens a step")
        for way in WAYS:
            given = {"speculative_method": "medusa", "speculative_model": folder, **way} if way else {}
            found, load = answers(replace(config_of(model), **given), questions)
            assert plain is None or found == plain, "answers differ"
            plain = found
            accepted = load.num_accepted_per_position
            num_steps = load.generation_tokens - sum(accepted)
            shares = " ".join(f"{each / max(1, load.num_drafts):.2f}" for each in accepted)
            name = way.get("speculative_tree") or f"chain of {way.get('num_speculative_tokens', 0)}"
            rows = 1 + load.num_draft_tokens / num_steps
            print(f"{name} | {rows:.1f} | {shares} | {load.generation_tokens / num_steps:.2f}", flush=True)


def prompts(split: str, number: int) -> list[list[int]]:
    """Token ids of questions of all kinds, each with what was said before it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "dinghy"))
    from lessons.conversation import Split
    from lessons.syllabus import draw_all

    tokenizer = PromptTokenizer.from_folder(resolve_model("demo://dinghy"))
    drawn = islice(draw_all(Split(split), 0), number)
    return [tokenizer.encode_chat(each.question, tools=each.tools) for each in drawn]


def config_of(model: Path) -> EngineConfig:
    return EngineConfig(model=str(model), dtype="float32", device="cpu", max_num_queued_tokens=10**7)


def answers(config: EngineConfig, asked: list[list[int]]) -> tuple[list[list[int]], Any]:
    """Greedy ones, and the engine's counts."""
    engine = Engine(config, load_runner(config))
    found: dict[str, list[int]] = {}
    for index, token_ids in enumerate(asked):
        sampling = SamplingParams(temperature=0.0, max_tokens=LONGEST_ANSWER)
        engine.add(
            EngineRequest(request_id=str(index), prompt_token_ids=token_ids, sampling=sampling, arrival_time=0.0)
        )
    while engine.has_work():
        for output in engine.step():
            found.setdefault(output.request_id, []).extend(output.new_token_ids)
    return [found[str(index)] for index in range(len(asked))], engine.load


def trained(model: Path, asked: list[list[int]], answered: list[list[int]], epochs: int) -> dict[str, torch.Tensor]:
    """Heads of one residual block each, in the layout of their checkpoints."""
    torch.manual_seed(0)
    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    states, behind = [], []
    with torch.no_grad():
        for prompt, answer in zip(asked, answered, strict=True):
            hidden = reference.model(torch.tensor([prompt + answer])).last_hidden_state[0, len(prompt) - 1 :]
            padded = torch.tensor([*answer, *[-100] * (NUM_HEADS + 1)])
            states.append(hidden[: len(answer)])
            behind.append(torch.stack([padded[index : index + len(answer)] for index in range(1, NUM_HEADS + 1)], 1))
    hidden, targets = torch.cat(states), torch.cat(behind)
    size = hidden.shape[1]
    blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(NUM_HEADS))
    outputs = nn.ModuleList(nn.Linear(size, reference.config.vocab_size, bias=False) for _ in range(NUM_HEADS))
    for block, output in zip(blocks, outputs, strict=True):
        nn.init.zeros_(block.weight)
        output.weight.data.copy_(reference.lm_head.weight)
    optimiser = torch.optim.AdamW([*blocks.parameters(), *outputs.parameters()], lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(hidden)).split(512):
            loss = torch.zeros(())
            for head, (block, output) in enumerate(zip(blocks, outputs, strict=True)):
                seen = hidden[rows] + nn.functional.silu(block(hidden[rows]))
                wanted = targets[rows, head]
                if (wanted >= 0).any():
                    loss = loss + nn.functional.cross_entropy(output(seen), wanted, ignore_index=-100)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    tensors = {}
    for head, (block, output) in enumerate(zip(blocks, outputs, strict=True)):
        tensors[f"{head}.0.linear.weight"], tensors[f"{head}.0.linear.bias"] = block.weight.data, block.bias.data
        tensors[f"{head}.1.weight"] = output.weight.data
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
