"""Fairlead's engine in process: scheduler, block manager, paged cache with prefix hashing, runner and sampler."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measurement import Outcome, measure, peer_arguments, report
from workload import TEMPERATURE, TOP_P, Request

import fairlead_engine
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest, SamplingParams


def serve(engine: Engine, requests: list[Request], sampled: bool) -> Outcome:
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(requests))}
    token_seconds: dict[str, list[float]] = {request_id: [] for request_id in outputs}
    started = time.perf_counter()
    for index, request in enumerate(requests):
        sampling = SamplingParams(
            temperature=TEMPERATURE if sampled else 0.0,
            top_p=TOP_P if sampled else 1.0,
            max_tokens=request.num_outputs,
            ignore_eos=True,
        )
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
            now = time.perf_counter() - started
            token_seconds[output.request_id] += [now] * len(output.new_token_ids)
    return Outcome(list(outputs.values()), list(token_seconds.values()))


def main() -> None:
    args = peer_arguments("Serve a workload with Fairlead's engine.")
    requests = args.workload.requests()
    config = EngineConfig(
        model=str(args.checkpoint),
        dtype=args.dtype,
        max_num_seqs=len(requests),
        max_num_batched_tokens=args.workload.max_batch_tokens,
        max_num_queued_tokens=sum(len(request.prompt) for request in requests),
        num_threads=args.threads,
    )
    engine = Engine(config)
    report(measure("fairlead", fairlead_engine.__version__, args, lambda work: serve(engine, work, args.sampled)))


if __name__ == "__main__":
    main()
