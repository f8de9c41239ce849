"""`docs/model-server-protocol.md` says what the code does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_common.wire import messages
from fairlead_common.wire.blocks import ROOT, extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_engine import errors
from fairlead_engine.core.messages import BlocksChanged
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.errors import ModelLoadReason, StartError
from fairlead_engine.host.engine_stream import KVMirror

DOCUMENT = Path(__file__).parents[3] / "docs" / "model-server-protocol.md"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_worked_example_of_block_hashes_is_right(text: str) -> None:
    example = _example_of_hashes(text)
    token_ids, block_size = example["token_ids"], example["block_size"]
    extra = extra_bytes(cache_salt=example["cache_salt"])
    assert extra.hex() == example["extra"]
    assert [each.hex() for each in hash_blocks(token_ids, block_size)] == example["hashes"]
    salted = hash_blocks(token_ids, block_size, extra=extra)
    assert [each.hex() for each in salted] == example["hashes_with_cache_salt"]
    assert num_cacheable_blocks(len(token_ids), block_size) == example["cacheable_blocks"]


def test_the_worked_example_of_list_and_watch_leads_where_it_says(text: str) -> None:
    listed, *lines = _examples(text, "## List and watch")
    blocks = msgspec.convert(listed, messages.KVBlocks)
    assert [chain.hashes for chain in blocks.blocks] == [_example_of_hashes(text)["hashes"]]
    mirror = KVMirror(blocks.block_size)
    for chain in blocks.blocks:
        mirror.apply(BlocksChanged([_chain(chain)], []))
    assert msgspec.structs.replace(mirror.blocks(), epoch=blocks.epoch) == blocks
    for line in lines:
        change = msgspec.convert(line, messages.StreamLine)
        removed = [bytes.fromhex(each) for each in change.removed]
        sent = mirror.apply(BlocksChanged([_chain(chain) for chain in change.stored], removed))
        assert json.loads(sent) == line
    assert mirror.seq == 3


@pytest.mark.parametrize(
    "message", [messages.ModelInfo, messages.PromptTokens, messages.KVBlocks, messages.StreamLine, messages.LoadLine]
)
def test_every_field_of_the_messages_is_described(text: str, message: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(message):
        assert f"`{field.name}`" in text, field.name


def test_every_term_of_the_step_cost_is_described(text: str) -> None:
    for term in (*StepWork._fields, "residual"):
        assert re.search(rf"\b{term}\b", text), term


def test_the_example_of_passed_token_ids_is_a_message(text: str) -> None:
    (example,) = _examples(text, "## Passing token ids on")
    assert msgspec.convert(example[messages.FIELD_TOKENS], messages.PromptTokens).prompts == [[1, 72, 104, 8]]


def test_every_reason_and_header_is_described(text: str) -> None:
    names = [name for name in vars(messages) if name.startswith(("REASON_", "HEADER_", "PATH_"))]
    gateways = {"HEADER_REPLICA", "HEADER_PREDICTED_CACHED_TOKENS", "HEADER_PREDICTED_TTFT_MS", "HEADER_QUEUE_MS"}
    engine_side = [name for name in names if name not in gateways]
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


def _examples(text: str, heading: str) -> list[Any]:
    """The JSON objects in the code blocks of one section, in order; a block holds one, or one a line."""
    section = text[text.index(heading) :].partition("\n## ")[0]
    found: list[Any] = []
    for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL):
        lines = block.splitlines()
        found += [json.loads(block)] if lines[0] == "{" else [json.loads(line) for line in lines]
    return found


def _example_of_hashes(text: str) -> dict[str, Any]:
    (example,) = _examples(text, "## Blocks and their hashes")
    return dict(example)


def _chain(chain: messages.StoredBlocks) -> tuple[bytes, list[bytes]]:
    return bytes.fromhex(chain.parent) if chain.parent else ROOT, [bytes.fromhex(each) for each in chain.hashes]


def _start_errors(kind: type[StartError]) -> Iterator[type[StartError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _start_errors(child)
