"""transformers' continuous batching on the same requests.

Its cache is sized for the workload: left to itself it would take most of the machine's memory and much of its time. The
page size is its default and its attention is SDPA, as there is no flash attention on a CPU.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from measurement import Outcome, measure, peer_arguments, report
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from workload import TEMPERATURE, TOP_P, Request, Workload

PAGE_TOKENS = 256
RESULT_TIMEOUT_SECONDS = 1.0


def cache_config(workload: Workload) -> ContinuousBatchingConfig:
    """Room for all requests at once, and no more."""
    longest = workload.prompt_tokens[1] + workload.output_tokens[1]
    return ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=workload.num_requests * -(-longest // PAGE_TOKENS),
        max_batch_tokens=workload.max_batch_tokens,
        auto_switch_to_flash=False,
    )


def serve(manager: Any, requests: list[Request]) -> Outcome:
    index_of: dict[str, int] = {}
    outputs: list[list[int]] = [[] for _ in requests]
    token_seconds: list[list[float]] = [[] for _ in requests]
    started = time.perf_counter()
    for index, request in enumerate(requests):
        request_id = manager.add_request(request.prompt, max_new_tokens=request.num_outputs, record_timestamps=True)
        index_of[request_id] = index
    num_finished = 0
    while num_finished < len(requests):
        result = manager.get_result(timeout=RESULT_TIMEOUT_SECONDS)
        if result is not None and result.is_finished():
            outputs[index_of[result.request_id]] = list(result.generated_tokens)
            token_seconds[index_of[result.request_id]] = [at - started for at in result.timestamps]
            num_finished += 1
        elif not manager.is_running():
            raise SystemExit("transformers' continuous batching stopped before all requests were done")
    return Outcome(outputs, token_seconds)


def main() -> None:
    args = peer_arguments("Serve a workload with transformers' continuous batching.")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.workload.seed)
    transformers.utils.logging.disable_progress_bar()
    requests = args.workload.requests()
    model = AutoModelForCausalLM.from_pretrained(
        args.checkpoint, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    ).eval()
    if torch.cuda.is_available():
        model.to("cuda")
    choice = {"temperature": TEMPERATURE, "top_p": TOP_P, "top_k": 0} if args.sampled else {}
    generation = GenerationConfig(
        max_new_tokens=args.workload.output_tokens[1],
        do_sample=args.sampled,
        eos_token_id=-1,
        pad_token_id=2,
        **choice,
    )
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=cache_config(args.workload), block=True
    ) as manager:
        serve(manager, [Request(requests[0].prompt[:16], 4)])
        report(measure("transformers", transformers.__version__, args, lambda work: serve(manager, work)))
        # Its threads may outlive the context; the figures are out.
        os._exit(0)


if __name__ == "__main__":
    main()
