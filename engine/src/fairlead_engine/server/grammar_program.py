"""Making grammars as the program of a process (`fairlead_protocol.workers`), started by `GrammarCompiler`.

llguidance cannot be interrupted while it works, but a process can be ended.
"""

import pickle
import resource

import llguidance  # noqa: F401 (loaded before anybody waits)
import msgspec

from fairlead_engine.errors import RequestError
from fairlead_engine.server.grammar_job import GrammarJob, Made, bytes_as_tokens
from fairlead_protocol.workers.process import Handler

_STACK_BYTES = 4 * 2**20
"""Half of what a thread of the core has, which would end with all its requests if it ran out of it."""


def make(payload: bytes) -> tuple[bytes, Handler]:
    """`payload`: how many tokens the model has, in decimal. A job is a `GrammarJob`, pickled; its answer is `Made`, as
    MessagePack."""
    bytes_as_tokens(int(payload))
    most, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if most == resource.RLIM_INFINITY or most > _STACK_BYTES:
        resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
    encode = msgspec.msgpack.Encoder().encode

    def made(job: bytes, takes_long: bool) -> bytes:
        wanted: GrammarJob = pickle.loads(job)
        try:
            found: Made = (None, wanted.made())
        except RequestError as error:
            found = ((error.field, str(error), error.code), None)
        return encode(found)

    return b"", made
