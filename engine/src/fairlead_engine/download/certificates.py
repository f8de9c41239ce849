"""Certificates of one's own: those in `ca.crt`, as Secrets and ConfigMaps have it, are trusted beside the system's."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead_engine.download.remote import DownloadError
from fairlead_protocol.downloads import DownloadFailure
from fairlead_protocol.memory_files import memory_file

KEY = "ca.crt"
"""The environment variable with certificates in PEM, which a Secret's key of this name becomes."""
FILE = "SSL_CERT_FILE"
"""The environment variable that every library for TLS reads."""

PUT_CERTIFICATE = f"put the one that signed it into the Secret's {KEY}, or name a file with those to trust in {FILE}"
"""What to do about a certificate that is not trusted."""


@contextmanager
def trusted() -> Iterator[None]:
    """Lets FILE name a file with the certificates of KEY and those that it named so far, else the system's, for as long
    as it lasts. Raises DownloadError where KEY has none, or the file that is named cannot be read."""
    own = os.environ.get(KEY)
    if own is None:
        yield
        return
    _check(own)
    named = os.environ.get(FILE)
    try:
        system = Path(path).read_bytes() if (path := named or ssl.get_default_verify_paths().cafile) else b""
    except OSError as error:
        raise _not_set_up(f"{FILE}: {path} cannot be read: {error.strerror}") from None
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
        raise _not_set_up(f"{KEY} holds no certificate in PEM: give it the text of the file") from None


def _not_set_up(problem: str) -> DownloadError:
    return DownloadError(DownloadFailure.SOURCE_UNREACHABLE, problem)
