"""A program as strangers write them, for `fairlead_common.workers`: it does what each job says."""

import ctypes
import time
from collections.abc import Callable


def make(payload: bytes) -> tuple[bytes, Callable[[bytes, bool], bytes]]:
    """Told the job `payload` when it is loaded."""
    seen: list[bytes] = []
    kept: list[bytearray] = []

    def do(job: bytes, takes_long: bool) -> bytes:
        """`VERB ARGUMENT`"""
        verb, _, argument = job.partition(b" ")
        seen.append(job)
        match verb:
            case b"burn":
                end = time.process_time() + float(argument)
                while time.process_time() < end:
                    pass
            case b"sleep":
                time.sleep(float(argument))
            case b"take":
                kept.append(bytearray(int(argument)))
                kept.clear()
            case b"die":
                ctypes.CDLL(None).abort()
            case b"raise":
                raise ValueError(argument.decode())
            case b"panic":
                raise PanicException(argument.decode())
            case b"which":
                return b"long" if takes_long else b"short"
            case b"count":
                return str(len(seen)).encode()
        return job

    return do(payload, True), do


def make_plain(payload: bytes) -> tuple[bytes, Callable[[bytes, bool], bytes]]:
    """Told "plain" when it is loaded, and told of no other job."""
    return b"plain", make(b"")[1]


class PanicException(BaseException):
    """As a panic in Rust is raised."""
