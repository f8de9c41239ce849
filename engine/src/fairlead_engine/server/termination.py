"""Last words: the reason of a failed start or a fatal error, for the kubelet and a person."""

import os
import sys
from pathlib import Path

import msgspec

from fairlead_engine.errors import EngineError

VARIABLE = "FAIRLEAD_TERMINATION_LOG"
"""Environment variable with the termination log's path, if not `DEFAULT_PATH`."""
DEFAULT_PATH = Path("/dev/termination-log")


def report(error: EngineError) -> None:
    """Writes `{"reason", "message"}` to the termination log, if it exists, and to stderr."""
    # Bytes of a command line that are no UTF-8 are lone surrogates, which JSON cannot hold.
    words = {name: value.encode(errors="backslashreplace").decode() for name, value in error.to_dict().items()}
    text = msgspec.json.encode(words).decode()
    print(text, file=sys.stderr, flush=True)
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else DEFAULT_PATH
    if not (given or path.exists()):
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        print(f"the termination log {path} cannot be written: {problem}", file=sys.stderr, flush=True)
