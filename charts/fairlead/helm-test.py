"""`helm test`: asks the gateway through its Service, as a client does. Where it does not work: exit 1, and a sentence.

GATEWAY: its base URL. API_KEYS: a folder with a file per client; unset where no key is asked for.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

SECONDS = 60
"""How long a gateway that has just been installed may take."""


def main() -> None:
    """Prints a line per check."""
    expect("/ready", None, 200)
    key = first_key()
    if key is not None:
        expect("/v1/models", None, 401)
    body = expect("/v1/models", key, 200)
    print("models:", ", ".join(model["id"] for model in json.loads(body)["data"]) or "none yet")


def first_key() -> str | None:
    """Any client's key; None where the gateway asks for none."""
    folder = os.environ.get("API_KEYS")
    if folder is None:
        return None
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.read_text().strip():
            return path.read_text().split()[0]
    sys.exit(f"no key in {folder}: put one into the Secret")


def expect(path: str, key: str | None, status: int) -> bytes:
    """The answer's body, once it has this status."""
    url = os.environ["GATEWAY"] + path
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    asked = f"GET {url} {'with' if key else 'without'} a key"
    deadline = time.monotonic() + SECONDS
    while True:
        found, body = ask(urllib.request.Request(url, headers=headers))
        if found == status:
            print(f"{asked}: {found}")
            return body
        if time.monotonic() > deadline:
            sys.exit(f"{asked}: {found} instead of {status}: {body.decode(errors='replace')}")
        time.sleep(1)


def ask(request: urllib.request.Request) -> tuple[object, bytes]:
    """Status and body; where nothing answers, the reason instead of a status."""
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return error, b""


main()
