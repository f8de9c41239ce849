"""Fairlead's engine in process: scheduler, block manager, paged cache with prefix hashing, runner and sampler."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from measurement import Outcome, measure, peer_arguments, report
from workload import TEMPERATURE, TOP_P, Request

import fairlead_engine
from fairlead_engine.config import QUANTIZATIONS, EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest, SamplingParams


def serve(
    engine: Engine, requests: list[Request], sampled: bool, after_step: Callable[[], None] = lambda: None
) -> Outcome:
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
        after_step()
    return Outcome(list(outputs.values()), list(token_seconds.values()))


def profile(engine: Engine, requests: list[Request], sampled: bool) -> dict[str, float]:
    """Operation → its share of all operations' own time, the greatest first; what is Python between them is none.

    Every eighth step is looked at: the profiler needs longer than the steps do.
    """
    on_device = torch.cuda.is_available()
    times: Counter[str] = Counter()

    def count(seen: torch.profiler.profile) -> None:
        for each in seen.key_averages():
            if not each.key.startswith("ProfilerStep"):
                times[each.key] += each.self_device_time_total if on_device else each.self_cpu_time_total

    every_eighth = torch.profiler.schedule(wait=6, warmup=1, active=1)
    with torch.profiler.profile(schedule=every_eighth, on_trace_ready=count) as profiler:
        serve(engine, requests, sampled, profiler.step)
    return {name: time / times.total() for name, time in times.most_common(10)}


def main() -> None:
    args = peer_arguments("Serve a workload with Fairlead's engine.")
    requests = args.workload.requests()
    config = EngineConfig(
        model=str(args.checkpoint),
        dtype=args.floats,
        quantization=args.dtype if args.dtype in QUANTIZATIONS else None,
        max_num_seqs=len(requests),
        max_num_batched_tokens=args.workload.max_batch_tokens,
        max_num_queued_tokens=sum(len(request.prompt) for request in requests),
        num_threads=args.threads,
    )
    engine = Engine(config)
    if args.profile:
        print(json.dumps(profile(engine, requests, args.sampled)))
        return
    report(measure("fairlead", fairlead_engine.__version__, args, lambda work: serve(engine, work, args.sampled)))


if __name__ == "__main__":
    main()
