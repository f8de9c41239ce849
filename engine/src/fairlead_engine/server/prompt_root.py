"""The first of the processes that tokenise, which can be started before what is asked of them is imported."""

from fairlead_protocol.workers.root import WorkerRoot

PROMPT_PROGRAM = "fairlead_engine.server.prompt_program"


def prompt_root() -> WorkerRoot:
    """Close it when done."""
    return WorkerRoot([PROMPT_PROGRAM])
