"""A rank other than the first, as a process: `python -m fairlead_engine.runner.rank`, started by rank 0 alone.

Computes its part of every step that rank 0 sends, and meets the others in the sums of the layers. The process ends with
its standard input, held by rank 0, even while loading or waiting for a sum that never comes.
"""

import os
import select
import sys
import threading

import msgspec
import torch

from fairlead_common.logs import configure_logging
from fairlead_engine.errors import StartError
from fairlead_engine.machine.child_process import leave_signals_to_parent
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine.runner.placement import choose_device
from fairlead_engine.runner.rank_messages import HERE, READY, Call, Join, Reader, Step, join_group, reach_store


def main() -> int:
    """Serves until rank 0 is gone. Writes HERE and then READY, or the reason of a failure, to standard output."""
    leave_signals_to_parent()
    reader, output = Reader(sys.stdin.buffer), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    join = reader.receive()
    if not isinstance(join, Join):
        print("this process is started by the engine; run `fairlead-engine serve` instead", file=sys.stderr)
        return 2
    threading.Thread(target=_end_with_input, name="lifeline", daemon=True).start()
    configure_logging(join.log_level, join.log_format)

    def say(words: bytes) -> None:
        output.write(words)
        output.flush()

    say(HERE)
    shard = Shard(join.rank, join.size)
    join_group(shard, reach_store(join.port), choose_device(join.settings.device, shard))
    try:
        part = ModelPart(join.settings, shard)
    except StartError as error:
        say(msgspec.json.encode(error.to_dict()) + b"\n")
        return 1
    part.agree_on_adapters(join.port)
    say(READY)
    try:
        serve(part, reader)
    except Exception as error:  # which rank 0 hears, and else would know from the log alone
        told = error if isinstance(error, StartError) else StartError(f"{type(error).__name__}: {error}")
        say(msgspec.json.encode(told.to_dict()) + b"\n")
        raise
    return 0


def _end_with_input() -> None:
    """Ends this process when the other end of its standard input is closed, whether or not all was read."""
    end = select.poll()
    end.register(sys.stdin.fileno(), 0)  # the end is told unasked
    end.poll()
    os._exit(0)


@torch.inference_mode()
def serve(part: ModelPart, reader: Reader) -> None:
    """Does what comes, until nothing more can come."""
    while (message := reader.receive()) is not None:
        match message:
            case Call():
                message.on(part)
            case Step(plan):
                computed = part.compute(plan)
                part.settle(computed, torch.empty(int(plan.samples.sum()), dtype=torch.int64, device=part.device))
                for _ in part.scored_logits(plan, computed):
                    pass


if __name__ == "__main__":
    sys.exit(main())
