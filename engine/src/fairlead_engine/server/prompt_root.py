"""The first of the processes that run strangers' programs, which can be started before the rest is imported."""

from fairlead_protocol.workers.root import WorkerRoot

PROMPT_PROGRAM = "fairlead_engine.server.prompt_program"
_MOST_BESIDE = 16
"""Jobs that take long at a time: each program of an engine bounds its own, and none waits for another's."""


def prompt_root() -> WorkerRoot:
    """Close it when done."""
    return WorkerRoot([PROMPT_PROGRAM], _MOST_BESIDE)
