"""Addresses of pods: each gets one of 127.20.x.y, so that all can listen on the same port.

On Linux all of 127.0.0.0/8 is this machine; elsewhere the addresses must be added to the loopback interface.
"""

import socket
from collections import deque
from zlib import crc32

_NETWORK = "127.20"
_LOCK_HOST = 254
_LOCK_PORT = 7443


class NoAddress(Exception):
    """No pod address can be had; the text says why."""


class AddressBlock:
    """The /24 of one fleet. Held by a socket bound to its last address, so that fleets of one machine never share."""

    def __init__(self, preference: str) -> None:
        """`preference`: any text; the same text gets the same block when it is free. Raises NoAddress."""
        self._lock, self._block = _claim_block(crc32(preference.encode()) % 256)
        self._free = deque(f"{_NETWORK}.{self._block}.{host}" for host in range(1, _LOCK_HOST))

    def take(self) -> str:
        """The address that has been free for longest; raises NoAddress when all are in use."""
        if not self._free:
            raise NoAddress("all pod addresses are in use")
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)

    def close(self) -> None:
        self._lock.close()


def _claim_block(first: int) -> tuple[socket.socket, int]:
    problem = OSError()
    for offset in range(256):
        block = (first + offset) % 256
        lock = socket.socket()
        try:
            lock.bind((f"{_NETWORK}.{block}.{_LOCK_HOST}", _LOCK_PORT))
        except OSError as error:
            lock.close()
            problem = error
        else:
            return lock, block
    raise NoAddress(
        f"no address in {_NETWORK}.0.0/16 can be used for pods ({problem.strerror}). Linux has them all; on macOS add "
        f"them first, for example: sudo ifconfig lo0 alias {_NETWORK}.{first}.1"
    )
