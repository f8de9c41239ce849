"""What a gateway's process loads: its start, and its memory, are every replica's of it."""

import subprocess
import sys

NEEDLESS = {
    "aiohttp",
    "celpy",
    "fairlead_local",
    "google",
    "grpc",
    "kopf",
    "kubernetes",
    "torch",
    "transformers",
    "yaml",
}
PROGRAM = """
import sys
from fairlead.cli.main import build_parser
build_parser({"gateway"})
assert "fairlead.gateway.gateway_command" in sys.modules
print(*sys.modules, sep="\\n")
"""


def test_the_command_loads_no_other_http_client_and_nothing_of_the_operators() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert NEEDLESS.isdisjoint(name.partition(".")[0] for name in ended.stdout.split())


def test_the_process_of_a_tokenizer_loads_neither_routes_nor_asyncio() -> None:
    program = 'import sys, fairlead.gateway.prompts.prompt_program; print(*sys.modules, sep="\\n")'
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"asyncio", "fairlead.fleet", "fairlead.gateway.openai"}.isdisjoint(ended.stdout.split())
