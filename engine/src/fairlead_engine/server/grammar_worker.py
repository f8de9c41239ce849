"""A process that makes grammars, started by `GrammarCompiler`: it reads jobs and writes what became of them.

llguidance cannot be interrupted while it works, but a process can be ended.
"""

import os
import pickle
import sys
from typing import Any

from fairlead_engine.child_process import be_killed_with, leave_signals_to_parent
from fairlead_engine.errors import RequestError
from fairlead_engine.grammar_limits import resident_bytes
from fairlead_engine.server.grammar_job import GrammarJob

READY = b"ready\n"
HEAD_BYTES = 8
"""Of a message's length, little-endian."""
_MOST_BYTES = 256 * 2**20
"""Of memory that may be left behind a job; a process that has more is used up."""


def framed(message: Any) -> bytes:
    body = pickle.dumps(message)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


def main() -> None:
    leave_signals_to_parent()
    be_killed_with(int(sys.argv[1]))
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    import llguidance  # noqa: F401 (loaded before anybody waits)

    answers.write(READY)
    answers.flush()
    while head := jobs.read(HEAD_BYTES):
        made = _made(pickle.loads(jobs.read(int.from_bytes(head, "little"))))
        answers.write(framed((made, resident_bytes() > _MOST_BYTES)))
        answers.flush()


def _made(job: GrammarJob) -> Any:
    """The grammar, or what a RequestError is made of."""
    try:
        return job.made()
    except RequestError as error:
        return error.field, str(error), error.code


if __name__ == "__main__":
    main()
