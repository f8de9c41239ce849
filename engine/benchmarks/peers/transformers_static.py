"""transformers' `generate` on all requests as one padded batch: each computes until the longest has ended."""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from measurement import Outcome, measure, peer_arguments, report
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList
from workload import TEMPERATURE, TOP_P, Request

PAD = 2


class Watch(StoppingCriteria):
    """Notes when each token was there, and stops nothing."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = time.perf_counter()

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        self.seconds.append(time.perf_counter() - self._started)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def serve(model: Any, requests: list[Request], sampled: bool) -> Outcome:
    watch = Watch()
    longest = max(len(request.prompt) for request in requests)
    rows = [[PAD] * (longest - len(request.prompt)) + request.prompt for request in requests]
    mask = [[0] * (longest - len(request.prompt)) + [1] * len(request.prompt) for request in requests]
    choice = {"do_sample": True, "temperature": TEMPERATURE, "top_p": TOP_P, "top_k": 0} if sampled else {}
    generated = model.generate(
        torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=GenerationConfig(
            max_new_tokens=max(request.num_outputs for request in requests),
            eos_token_id=None,
            pad_token_id=PAD,
            **({"do_sample": False} | choice),
        ),
        stopping_criteria=StoppingCriteriaList([watch]),
    )
    outputs = [row[longest:][: request.num_outputs] for row, request in zip(generated.tolist(), requests, strict=True)]
    return Outcome(outputs, [watch.seconds[: request.num_outputs] for request in requests])


def main() -> None:
    args = peer_arguments("Serve a workload with transformers' generate.")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.workload.seed)
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        args.checkpoint, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    ).eval()
    model.generation_config = GenerationConfig()
    if torch.cuda.is_available():
        model.to("cuda")
    serve(model, [Request(args.workload.requests()[0].prompt[:16], 4)], args.sampled)
    report(measure("transformers", transformers.__version__, args, lambda work: serve(model, work, args.sampled)))


if __name__ == "__main__":
    main()
