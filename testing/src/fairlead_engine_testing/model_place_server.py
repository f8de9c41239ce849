"""The dinghy that comes with the engine at a kind of source, with TLS, for as long as the process lives:
`python -m fairlead_engine_testing.model_place_server HOST PORT SCHEME PAUSE_SECONDS`.

Its first line is `{"source", "environment"}`; each file that is asked for is one, too.
"""

import json
import socket
import sys
import tempfile
import threading
from pathlib import Path

import fairlead_engine.demo
from fairlead_engine_testing.certificates import make_certificate
from fairlead_engine_testing.file_server import Listening
from fairlead_engine_testing.model_places import model_place

_DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"


class _Told(list[object]):
    """Prints what is appended."""

    def append(self, asked: object) -> None:
        print(asked, flush=True)


def main(host: str, port: str, scheme: str, pause_seconds: str) -> None:
    """`pause_seconds`: before each 64 KiB of a file."""
    address = socket.gethostbyname(socket.gethostname()) if host == "0.0.0.0" else host
    files = {path.name: path.read_bytes() for path in _DINGHY.iterdir() if path.is_file() and path.suffix != ".py"}
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(Path(folder), address)
        listening = Listening(host=host, port=int(port), address=address, certificate=certificate)
        with model_place(scheme, files, listening) as place:
            place.server.pause_seconds = float(pause_seconds)
            place.server.asked = _Told()  # type: ignore[assignment]
            print(json.dumps({"source": place.source, "environment": dict(place.environment)}), flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
