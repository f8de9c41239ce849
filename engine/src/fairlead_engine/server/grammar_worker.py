"""A process that makes grammars, started by `GrammarCompiler`.

llguidance cannot be interrupted while it works, but a process can be ended.
"""

from typing import Any

from fairlead_engine.errors import RequestError
from fairlead_engine.server.child_jobs import Jobs
from fairlead_engine.server.grammar_job import GrammarJob

_MOST_BYTES = 256 * 2**20


def main() -> None:
    jobs = Jobs()
    import llguidance  # noqa: F401 (loaded before anybody waits)

    jobs.do(_made, _MOST_BYTES)


def _made(job: GrammarJob, _: bytes) -> tuple[Any, bytes]:
    """The grammar, or what a RequestError is made of."""
    try:
        return job.made(), b""
    except RequestError as error:
        return (error.field, str(error), error.code), b""


if __name__ == "__main__":
    main()
