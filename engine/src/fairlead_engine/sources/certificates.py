"""Private certificates: `ca.crt`, as in Secrets and ConfigMaps, is trusted beside the system's certificates."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead_common.memory_files import memory_file
from fairlead_engine.sources.remote import unreachable

KEY = "ca.crt"
"""Environment variable with certificates in PEM, from a Secret's key of this name."""
FILE = "SSL_CERT_FILE"
"""Environment variable that every library for TLS reads."""

PUT_CERTIFICATE = f"put the one that signed it into the Secret's {KEY}, or name a file with those to trust in {FILE}"
"""Remedy for an untrusted certificate."""


@contextmanager
def trusted() -> Iterator[None]:
    """Within the block, FILE names a file with the certificates of KEY and of the former FILE, else the system's.
    Raises DownloadError if KEY holds no certificate, or the named file cannot be read."""
    own = os.environ.get(KEY)
    if own is None:
        yield
        return
    _check(own)
    named = os.environ.get(FILE)
    try:
        system = Path(path).read_bytes() if (path := named or ssl.get_default_verify_paths().cafile) else b""
    except OSError as error:
        raise unreachable(f"{FILE}: {path} cannot be read: {error.strerror}") from None
    with memory_file(b"\n".join((system, os.fsencode(own), b"")), "certificates") as together:
        os.environ[FILE] = together
        try:
            yield
        finally:
            if named is None:
                del os.environ[FILE]
            else:
                os.environ[FILE] = named


def _check(own: str) -> None:
    text = own.encode("ascii", errors="replace").decode()  # names of authorities beside PEM have any letters
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise unreachable(f"{KEY} holds no certificate in PEM: give it the text of the file") from None
