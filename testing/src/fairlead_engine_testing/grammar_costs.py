"""What grammars cost an engine: `python -m fairlead_engine_testing.grammar_costs` serves the dinghy and prints memory
and waits. Whose `PYTHONPATH` it has is measured, so that two sources can be compared.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_PORT = 18771
_URL = f"http://127.0.0.1:{_PORT}"
_NUM_SCHEMAS = 60
_DESCRIPTION_BYTES = 6_000_000


def main() -> None:
    command = [sys.executable, "-m", "fairlead_engine", "serve", "--model", "demo://dinghy", "--port", str(_PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_ready()
            print(f"HTTP process at its start: {_resident(server.pid):.0f} MiB")
            for kind in ("response_format", "tools"):
                for index in range(_NUM_SCHEMAS):
                    _ask(**_described(kind, index))
                print(f"after {_NUM_SCHEMAS} {kind} with 6 MB of description: {_resident(server.pid):.0f} MiB")
            _waits_beside_a_slow_one()
        finally:
            server.terminate()


def _waits_beside_a_slow_one() -> None:
    schema = {"type": "object", "required": [f"n{index}" for index in range(20_000)]}
    slow = threading.Thread(target=lambda: print(f"20,000 required names: {_ask(**_format(schema)):.1f} s"))
    _ask(structured_outputs={"regex": "[a-b]{3}"})
    slow.start()
    waits, count = [], 0
    while slow.is_alive():
        count += 1
        waits.append(_ask(structured_outputs={"regex": f"[a-c]{{3}}{count}"}))
        time.sleep(0.5)
    print(f"a short pattern beside it: longest {max(waits):.1f} s of {len(waits)}")


def _described(kind: str, index: int) -> dict[str, Any]:
    schema = {
        "type": "object", "description": f"{index}" + "x" * _DESCRIPTION_BYTES, "properties": {"a": {"const": index}},
    }  # fmt: skip
    if kind == "response_format":
        return _format(schema)
    # The dinghy's template tells the model a tool's description, but no comment.
    hidden = {"type": "object", "properties": {"a": {"const": index}}, "$comment": schema["description"]}
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": hidden}}], "tool_choice": "required"}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}}


def _ask(**fields: Any) -> float:
    """Seconds that a chat takes."""
    body = {"model": "dinghy", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], **fields}
    headers = {"Content-Type": "application/json"}
    began = time.monotonic()
    request = urllib.request.Request(f"{_URL}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            response.read()
    except urllib.error.HTTPError as error:
        print(error.code, error.read()[:300].decode(errors="replace"))
    return time.monotonic() - began


def _wait_ready() -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{_URL}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
