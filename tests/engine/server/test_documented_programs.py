"""The Python programs of the documentation run as they stand, against a gateway and the engines that they ask for."""

import asyncio
import contextlib
import io
import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
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
from fairlead_testing.gateways import make_pool, running_gateway

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", *sorted(str(each.relative_to(ROOT)) for each in (ROOT / "docs").rglob("*.md")))
NOT_INSTALLED = {"agents", "llama_index"}
"""Modules of clients that need other versions of packages than the suite has."""
ALIASES = {
    "dinghy": ("my-model", "tiny", "cutter", "qwen3-embedding"),
    "encoder": ("my-reranker",),
    "vision": ("qwen2.5-vl",),
}
"""By engine, the names that the pages have for models."""
SHORTER = {"range(1000)": "range(3)", "time.sleep(10)": "time.sleep(0.05)"}


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def model_folders(folder: Path) -> dict[str, Path]:
    dinghy = shutil.copytree(resolve_model("demo://dinghy"), folder / "dinghy")
    (dinghy / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "Find: "}}))
    encoder = write_encoder(folder / "encoder", "bert", classifies=True, num_labels=1)
    write_word_pieces(encoder)
    return {"dinghy": dinghy, "encoder": encoder, "vision": write_vision_model(folder / "vision")}


@contextlib.asynccontextmanager
async def gateway_of(starter: Any, models: Mapping[str, Path], folder: Path) -> AsyncIterator[Gateway]:
    """A gateway that keeps files and has the Open Inference Protocol."""
    engines = {name: starter("--model", str(model)) for name, model in models.items()}
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # programs end without closing clients
async def test_each_program_runs(start_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later programs of a page go on with the names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 30), "teal").save("ship.png")
    models = model_folders(tmp_path)
    adapter = write_random_adapter(tmp_path / "pirate", models["dinghy"])
    said, left_out = dict[str, str](), set[str]()
    async with gateway_of(start_engine, models, tmp_path) as gateway:
        there = {
            "127.0.0.1:8080": f"127.0.0.1:{gateway.port}", "localhost:8080": f"127.0.0.1:{gateway.port}",
            "127.0.0.1:8082": f"127.0.0.1:{gateway.grpc_port}", "/models/qwen": str(models["dinghy"]),
            "/adapters/pirate": str(adapter), **SHORTER,
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
