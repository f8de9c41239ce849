"""`docs/model-server-protocol.md` says what the code does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_engine import errors
from fairlead_engine.errors import ModelLoadReason, StartError
from fairlead_protocol import messages
from fairlead_protocol.blocks import extra_bytes, hash_blocks, num_cacheable_blocks

DOCUMENT = Path(__file__).parents[3] / "docs" / "model-server-protocol.md"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_worked_example_of_block_hashes_is_right(text: str) -> None:
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    example = json.loads(found[1])
    token_ids, block_size = example["token_ids"], example["block_size"]
    extra = extra_bytes(cache_salt=example["cache_salt"])
    assert extra.hex() == example["extra"]
    assert [each.hex() for each in hash_blocks(token_ids, block_size)] == example["hashes"]
    salted = hash_blocks(token_ids, block_size, extra=extra)
    assert [each.hex() for each in salted] == example["hashes_with_cache_salt"]
    assert num_cacheable_blocks(len(token_ids), block_size) == example["cacheable_blocks"]


def test_every_field_of_the_model_message_is_described(text: str) -> None:
    for field in msgspec.structs.fields(messages.ModelInfo):
        assert f"`{field.name}`" in text, field.name


def test_every_reason_and_header_is_described(text: str) -> None:
    names = [name for name in vars(messages) if name.startswith(("REASON_", "HEADER_", "PATH_"))]
    engine_side = [name for name in names if name != "HEADER_REPLICA"]  # written by the gateway
    assert len(engine_side) >= 8
    for name in engine_side:
        assert f"`{getattr(messages, name)}`" in text, name


def test_every_reason_of_the_termination_log_is_described(text: str) -> None:
    reasons = {str(reason) for reason in ModelLoadReason} | {errors.EngineDead.reason}
    reasons |= {str(kind.reason) for kind in _start_errors(StartError) if kind is not errors.ModelLoadError}
    for reason in reasons:
        assert f"`{reason}`" in text, reason


async def test_every_path_in_the_table_exists(text: str, start_app: Any) -> None:
    app = start_app()
    rows = re.findall(r"^\| `(GET|POST)` \| (.*?) \|", text, re.MULTILINE)
    paths = [(method, path) for method, cell in rows for path in re.findall(r"`(/.*?)`", cell)]
    assert len(paths) >= 10
    for method, path in paths:
        other = "POST" if method == "GET" else "GET"
        assert (await app.http.request(other, path.replace("{id}", "tiny"))).status_code == 405, path


def _start_errors(kind: type[StartError]) -> Iterator[type[StartError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _start_errors(child)
