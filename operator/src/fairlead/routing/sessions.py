"""Which replica served a session last. Pure; knows neither loads nor prompts.

A session is what a client names: policies prefer its last replica among equal ones, and only there.
"""

from enum import StrEnum
from hashlib import blake2b

MAX_SESSIONS = 10_000
"""Per model; the ones served longest ago are forgotten first."""
NO_SESSION = b""


class SessionPlace(StrEnum):
    """Where a request of a session goes."""

    LAST = "last"
    """To the replica that served the session last."""
    OTHER = "other"
    """To another one, which is sooner or less loaded, or the only one with room."""
    NEW = "new"
    """The session is not known: new here, forgotten, or its replica is gone."""


def session_hash(name: str) -> bytes:
    """16 bytes that stand for the session of this name; nothing for the empty one."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest() if name else NO_SESSION


class SessionBook:
    """Sessions → uid of the replica that served each last."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._uids: dict[bytes, str] = {}
        """By hash; the one served last stands last."""
        self._present: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._uids)

    def last(self, session: bytes) -> str | None:
        """Uid of the replica; None = not known."""
        return self._uids.get(session)

    def place(self, session: bytes, uid: str) -> SessionPlace | None:
        """What it is for a session to be sent to this replica; None = no session."""
        if not session:
            return None
        last = self._uids.get(session)
        if last is None:
            return SessionPlace.NEW
        return SessionPlace.LAST if last == uid else SessionPlace.OTHER

    def served(self, session: bytes, uid: str) -> None:
        """The replica has begun to answer a request of the session."""
        if not session or uid not in self._present:
            return
        self._uids.pop(session, None)
        self._uids[session] = uid
        if len(self._uids) > self._max_sessions:
            del self._uids[next(iter(self._uids))]

    def keep_only(self, uids: frozenset[str]) -> None:
        """These replicas are there; forgets sessions of those that left."""
        if self._present - uids:
            self._uids = {session: uid for session, uid in self._uids.items() if uid in uids}
        self._present = uids
