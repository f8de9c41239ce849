"""Fairlead's engine in process: scheduler, block manager, paged cache with prefix hashing, runner and sampler."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measurement import Outcome, measure, peer_arguments, report
from workload import Request

import fairlead_engine
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest, SamplingParams


def serve(engine: Engine, requests: list[Request]) -> Outcome:
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(requests))}
    first_token: dict[str, float] = {}
    started = time.perf_counter()
    for index, request in enumerate(requests):
        sampling = SamplingParams(temperature=0.0, max_tokens=request.num_outputs, ignore_eos=True)
        refused = engine.add(
            EngineRequest(
                request_id=str(index), prompt_token_ids=request.prompt, sampling=sampling, arrival_time=time.time()
            )
        )
        if refused is not None:
            raise SystemExit(f"request {index} was refused: {refused.message}")
    while engine.has_work():
        for output in engine.step():
            outputs[output.request_id] += output.new_token_ids
            first_token.setdefault(output.request_id, time.perf_counter() - started)
    return Outcome(list(outputs.values()), list(first_token.values()))


def main() -> None:
    args = peer_arguments("Serve a workload with Fairlead's engine.")
    requests = args.workload.requests()
    config = EngineConfig(
        model=str(args.checkpoint),
        dtype="bfloat16",
        device="cpu",
        max_num_seqs=len(requests),
        max_num_batched_tokens=args.workload.max_batch_tokens,
        max_num_queued_tokens=sum(len(request.prompt) for request in requests),
        num_threads=args.threads,
    )
    engine = Engine(config)
    report(measure("fairlead", fairlead_engine.__version__, requests, lambda work: serve(engine, work)))


if __name__ == "__main__":
    main()
