"""CTranslate2, one request after the other: it batches no prompts of different lengths without forcing them token by
token, which is slower. `--convert` writes what it loads, into the checkpoint's folder, and does nothing else.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import ctranslate2
from measurement import Outcome, PeerArguments, measure, peer_arguments, report
from workload import TEMPERATURE, TOP_P, Request


def folder_of(args: PeerArguments) -> Path:
    return args.checkpoint / f"ctranslate2-{args.dtype}"


def convert(args: PeerArguments) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(args.checkpoint), low_cpu_mem_usage=True).convert(
        str(folder_of(args)), quantization=args.dtype, force=True
    )


def serve(generator: ctranslate2.Generator, requests: list[Request], words: list[str], sampled: bool) -> Outcome:
    choice = {"sampling_topk": 0, "sampling_topp": TOP_P, "sampling_temperature": TEMPERATURE} if sampled else {}
    outputs: list[list[int]] = []
    token_seconds: list[list[float]] = []
    started = time.perf_counter()

    def note(step: ctranslate2.GenerationStepResult) -> bool:
        token_seconds[-1].append(time.perf_counter() - started)
        return False

    for request in requests:
        token_seconds.append([])
        [result] = generator.generate_batch(
            [[words[token_id] for token_id in request.prompt]],
            max_length=request.num_outputs,
            min_length=request.num_outputs,
            include_prompt_in_result=False,
            callback=note,
            **choice,
        )
        outputs.append(result.sequences_ids[0])
    return Outcome(outputs, token_seconds)


def main() -> None:
    args = peer_arguments("Serve a workload with CTranslate2.")
    if args.convert:
        convert(args)
        return
    ctranslate2.set_random_seed(args.workload.seed)
    generator = ctranslate2.Generator(
        str(folder_of(args)), device="cpu", compute_type=args.dtype, inter_threads=1, intra_threads=args.threads
    )
    words = args.vocabulary()
    serve(generator, [Request(args.workload.requests()[0].prompt[:16], 4)], words, args.sampled)
    report(
        measure("ctranslate2", ctranslate2.__version__, args, lambda work: serve(generator, work, words, args.sampled))
    )
    os._exit(0)  # at exit its threads call a callback that is gone


if __name__ == "__main__":
    main()
