"""The Python programs of the documentation run as they stand, against a gateway and the engines that they ask for, of
which one is started, and told of adapters, as the page about these types it. Other shell blocks:
tests/test_documented_blocks.py."""

import asyncio
import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from fairlead.gateway.server import Gateway
from fairlead.routing.replica import Replica
from fairlead_engine.demo import resolve_model
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.encoder_checkpoints import write_encoder, write_word_pieces
from fairlead_engine_testing.vision_checkpoints import write_vision_model
from fairlead_testing.documents import PAGES, programs, shell_blocks
from fairlead_testing.gateways import make_pool, running_gateway

NOT_INSTALLED = {"agents", "llama_index"}
"""Modules of clients that need other versions of packages than the suite has."""
ALIASES = {
    "dinghy": ("my-model", "tiny", "cutter", "qwen3-embedding"),
    "encoder": ("my-reranker",),
    "vision": ("qwen2.5-vl",),
}
"""By engine, the names that the pages have for models."""
SERVE, LOAD = (block.text for block in shell_blocks("docs/guides/adapters.md") if block.not_run is None)
SHORTER = {"range(1000)": "range(3)", "time.sleep(10)": "time.sleep(0.05)"}


def model_folders(folder: Path) -> dict[str, Path]:
    dinghy = shutil.copytree(resolve_model("demo://dinghy"), folder / "dinghy")
    (dinghy / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "Find: "}}))
    encoder = write_encoder(folder / "encoder", "bert", classifies=True, num_labels=1)
    write_word_pieces(encoder)
    return {"dinghy": dinghy, "encoder": encoder, "vision": write_vision_model(folder / "vision")}


@contextlib.asynccontextmanager
async def gateway_of(engines: Mapping[str, Any], folder: Path) -> AsyncIterator[Gateway]:
    """A gateway that keeps files and has the Open Inference Protocol."""
    pools = []
    for name, engine in engines.items():
        await asyncio.to_thread(engine.wait_ready)
        at = urlsplit(engine.url)
        replica = Replica(uid=name, name=name, host=str(at.hostname), port=int(at.port or 0))
        pools.append(make_pool([replica], name=name, aliases=ALIASES[name]))
    stores: dict[str, Any] = {"response_store": f"sqlite:///{folder}/store.db", "file_store": f"{folder}/files"}
    async with running_gateway(*pools, follow=True, grpc_port=0, **stores) as (gateway, _, _):
        async with asyncio.timeout(60):
            while not all(pool.prompts.digests for pool in gateway.pools):
                await asyncio.sleep(0.01)
        yield gateway


def serve_words(meant: Mapping[str, str]) -> Sequence[str]:
    """The flags of the engine with adapters; beside the block, the one that the page has after it."""
    text = SERVE.replace("/models/qwen", meant["/models/qwen"])
    folder = str(Path(meant["/adapters/pirate"]).parent)
    program, command, *flags = shlex.split(text.replace("=/adapters/", f"={folder}/"))
    assert (program, command) == ("fairlead-engine", "serve")
    return [*flags, "--adapter-folder", folder]


def load_and_unload(engine: str) -> list[Any]:
    """What the engine says to the block that does it."""
    text = LOAD.replace("localhost:8000", engine)
    script = f'set -euo pipefail; curl() {{ command curl -sS --fail-with-body "$@"; echo; }}\n{text}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # programs end without closing clients
async def test_each_program_runs(start_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later programs of a page go on with the names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 30), "teal").save("ship.png")
    models = model_folders(tmp_path)
    adapter = write_random_adapter(tmp_path / "adapters/pirate", models["dinghy"])
    for name in ("poet", "cook"):
        shutil.copytree(adapter, adapter.with_name(name))
    folders = {"/models/qwen": str(models["dinghy"]), "/adapters/pirate": str(adapter)}
    flags = {name: ["--model", str(model)] for name, model in models.items()} | {"dinghy": serve_words(folders)}
    engines = {name: start_engine(*each) for name, each in flags.items()}
    said, left_out = dict[str, str](), set[str]()
    async with gateway_of(engines, tmp_path) as gateway:
        assert len(await asyncio.to_thread(load_and_unload, engines["dinghy"].url)) == 2
        there = {
            "127.0.0.1:8080": f"127.0.0.1:{gateway.port}", "localhost:8080": f"127.0.0.1:{gateway.port}",
            "127.0.0.1:8082": f"127.0.0.1:{gateway.grpc_port}", **folders, **SHORTER,
        }  # fmt: skip
        for page in PAGES:
            names: dict[str, Any] = {}
            for number, program in enumerate(programs(page)):
                tops = set(re.findall(r"^(?:from|import) (\w+)", program, re.M))
                if lacking := {top for top in tops if find_spec(top) is None}:
                    left_out |= lacking
                    continue
                for written, meant in there.items():
                    program = program.replace(written, meant)
                code, printed = compile(program, f"{page}, program {number + 1}", "exec"), io.StringIO()
                with contextlib.redirect_stdout(printed):
                    await asyncio.to_thread(exec, code, names)
                said[f"{page} {number}"] = printed.getvalue()
                if "print(" in program and "for call in" not in program:
                    assert printed.getvalue().strip(), program
    assert left_out <= NOT_INSTALLED
    assert len(said) >= 15
    assert sum("12" in answer for answer in said.values()) >= 5
