"""What trees of drafts bring over chains: tokens a step brings a sequence, of the dinghy with Medusa heads.

The heads are made here: trained on what the dinghy itself answers to questions that it was trained on, and measured on
held-out ones, greedy, in float32, so that answers are the same in each row. Counts, no times: they do not depend on the
machine.
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from answers import answers_of
from harness import Row
from safetensors.torch import save_file
from torch import nn

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.demo import resolve_model
from fairlead_engine.types import EngineLoad
from fairlead_engine_testing.requests import make_request

NUM_HEADS = 4
LONGEST_ANSWER = 64
WAYS: list[dict[str, Any]] = [
    {},
    *({"num_speculative_tokens": places} for places in (2, 4)),
    {"speculative_tree": "[[0],[1],[0,0],[2],[0,1],[1,0],[0,0,0],[0,1,0],[0,0,0,0]]"},
    *({"speculative_tree": tree, "num_speculative_tokens": places} for places, tree in ((2, "2x6"), (4, "2x8"),
                                                                                     (4, "4x16"), (4, "8x32"))),
]  # fmt: skip


def run(lessons: int = 600, questions: int = 100, epochs: int = 60, seed: int = 0) -> Iterator[Row]:
    """`lessons`: questions to train on; `questions`: held-out ones."""
    model = resolve_model("demo://dinghy")
    learnt, asked = prompts(model, "train", lessons, seed), prompts(model, "held-out", questions, seed)
    answered, _ = greedy(model, learnt)
    expected, _ = greedy(model, asked)
    with tempfile.TemporaryDirectory() as folder:
        save_file(trained(model, learnt, answered, epochs, seed), Path(folder) / "model.safetensors")
        for way in WAYS:
            heads = {"speculative_method": "medusa", "speculative_model": folder, **way} if way else {}
            found, load = greedy(model, asked, **heads)
            assert found == expected, "answers differ"
            accepted = load.num_accepted_per_position
            num_steps = load.generation_tokens - sum(accepted)
            yield {
                "drafts": way.get("speculative_tree") or f"chain of {way.get('num_speculative_tokens', 0)}",
                "rows a step": 1 + load.num_draft_tokens / num_steps,
                "accepted of the first, second … place": " ".join(
                    f"{each / max(1, load.num_drafts):.2f}" for each in accepted
                ),
                "tokens a step": load.generation_tokens / num_steps,
            }


def prompts(model: Path, split: str, number: int, seed: int) -> list[list[int]]:
    """Token ids of questions of all kinds, each with what was said before it."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "dinghy"))
    from lessons.conversation import Split
    from lessons.syllabus import draw_all

    tokenizer = PromptTokenizer.from_folder(model)
    drawn = islice(draw_all(Split(split), seed), number)
    return [tokenizer.encode_chat(each.question, tools=each.tools) for each in drawn]


def greedy(model: Path, asked: list[list[int]], **settings: Any) -> tuple[list[list[int]], EngineLoad]:
    """Answers, and the engine's counts."""
    config = EngineConfig(model=str(model), dtype="float32", device="cpu", max_num_queued_tokens=10**7, **settings)
    engine = Engine(config)
    requests = [make_request(str(index), ids, max_tokens=LONGEST_ANSWER) for index, ids in enumerate(asked)]
    return [answer.token_ids for answer in answers_of(engine, requests)], engine.load


def trained(
    model: Path, asked: list[list[int]], answered: list[list[int]], epochs: int, seed: int
) -> dict[str, torch.Tensor]:
    """Heads of one residual block each, in the layout of their checkpoints."""
    torch.manual_seed(seed)
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
