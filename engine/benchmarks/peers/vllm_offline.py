"""vLLM's engine in process, on a CUDA device: installed by whoever has one (`pip install vllm`), as it pins torch."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # steps are driven and timed from here
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
import vllm
from measurement import Outcome, measure, peer_arguments, report
from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt
from workload import TEMPERATURE, TOP_P, Request


def serve(engine: LLMEngine, requests: list[Request], sampled: bool) -> Outcome:
    outputs: list[list[int]] = [[] for _ in requests]
    token_seconds: list[list[float]] = [[] for _ in requests]
    started = time.perf_counter()
    for index, request in enumerate(requests):
        sampling = SamplingParams(
            temperature=TEMPERATURE if sampled else 0.0,
            top_p=TOP_P if sampled else 1.0,
            max_tokens=request.num_outputs,
            ignore_eos=True,
            detokenize=False,
        )
        engine.add_request(str(index), TokensPrompt(prompt_token_ids=request.prompt), sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            index, token_ids = int(output.request_id), list(output.outputs[0].token_ids)
            now = time.perf_counter() - started
            token_seconds[index] += [now] * (len(token_ids) - len(outputs[index]))
            outputs[index] = token_ids
    return Outcome(outputs, token_seconds)


def main() -> None:
    args = peer_arguments("Serve a workload with vLLM.")
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(args.checkpoint),
            dtype=args.dtype,
            skip_tokenizer_init=True,
            max_num_seqs=args.workload.num_requests,
            max_num_batched_tokens=max(args.workload.max_batch_tokens, 2048),
            max_model_len=4096,
            seed=args.workload.seed,
            enable_prefix_caching=False,
        )
    )
    serve(engine, [Request(args.workload.requests()[0].prompt[:16], 4)], args.sampled)
    memory = torch.cuda.max_memory_allocated() // 2**20
    report(measure("vllm", vllm.__version__, args, lambda work: serve(engine, work, args.sampled), memory))


if __name__ == "__main__":
    main()
