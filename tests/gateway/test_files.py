"""`/v1/files`, with OpenAI's client: uploads, pages, contents, and what is refused by name."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from fairlead.gateway.files.blobs import BlobError, Bucket, Folder, make_blobs
from fairlead.gateway.files.form_stream import MAX_HEAD_BYTES, FormStream, PartBegin, PartEnd
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead_common.settings import SettingError


async def test_files_are_kept_for_the_key_that_sent_them(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, keyed=True)
    ada, bob = (setup.openai.with_options(api_key=name[0] * 20) for name in ("ada", "bob"))
    content = b"".join(b'{"line": %d}\n' % number for number in range(40_000))
    sent = await ada.files.create(file=("lines.jsonl", content), purpose="batch")
    assert (sent.filename, sent.bytes, sent.purpose, sent.status) == ("lines.jsonl", len(content), "batch", "processed")
    assert await ada.files.retrieve(sent.id) == sent and sent.expires_at - sent.created_at == 30 * 86400
    assert (await ada.files.content(sent.id)).content == content
    short = {"anchor": "created_at", "seconds": 3600}
    others = [
        await ada.files.create(file=(f"{name}.jsonl", b"{}"), purpose="batch", expires_after=short) for name in "xyz"
    ]
    assert others[0].expires_at - others[0].created_at == 3600
    listed = [file.id async for file in ada.files.list(limit=2)]
    assert listed == [file.id for file in (*others[::-1], sent)]
    assert [file.id async for file in ada.files.list(order="asc", purpose="batch")] == listed[::-1]
    assert [file.id async for file in ada.files.list(purpose="batch_output")] == []

    empty = await bob.files.list()
    assert (empty.data, empty.first_id, empty.last_id) == ([], "", ""), "the specification has no null here"
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {sent.id}"):
            await call(sent.id)
    assert (await ada.files.delete(sent.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await ada.files.content(sent.id)
    assert len(list((tmp_path / "files").iterdir())) == 3


async def test_bytes_with_a_type_are_a_file_without_a_name(with_files, tmp_path: Path) -> None:
    """As the official client for Java sends bytes; a text without a type and a name is a path that was not opened."""
    setup = await with_files(tmp_path)
    type_of = "Content-Type: application/octet-stream\r\n"
    for header, status in ((type_of, 200), ("", 400), ("Content-Type: text/plain; charset=utf-8\r\n", 400)):
        head = f'--mark\r\nContent-Disposition: form-data; name="file"\r\n{header}\r\n'
        body = head.encode() + b"{}\r\n" + form_of([("purpose", None, b"batch")])
        headers = {"content-type": "multipart/form-data; boundary=mark"}
        async with setup.http.post(f"{setup.url}/v1/files", data=io.BytesIO(body), headers=headers) as response:
            assert response.status == status
    assert [file.filename async for file in setup.openai.files.list()] == ["file"]


async def test_what_is_refused_is_named_and_leaves_nothing(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, max_file_bytes=1000, max_client_file_bytes=2500)
    create = setup.openai.files.create

    async def param(error: type[openai.APIStatusError], **asked: Any) -> str | None:
        with pytest.raises(error) as caught:
            await create(**{"file": ("a.jsonl", b"{}"), "purpose": "batch"} | asked)
        return caught.value.param

    assert await param(openai.BadRequestError, purpose="fine-tune") == "purpose"
    assert await param(openai.BadRequestError, file=("a.jsonl", b"")) == "file"
    assert await param(openai.BadRequestError, file=("a" * 256, b"{}")) == "file"
    assert await param(openai.APIStatusError, file=("a.jsonl", b"x" * 1001)) == "file"
    assert await param(openai.APIStatusError, file=("a.jsonl", b"x" * 500_000)) == "file"
    wrong = {"anchor": "created_at", "seconds": 1}
    assert await param(openai.BadRequestError, expires_after=wrong) == "expires_after.seconds"
    assert await param(openai.BadRequestError, expires_after={"anchor": "now"}) == "expires_after.anchor"
    assert list((tmp_path / "files").iterdir()) == [] and (await setup.openai.files.list()).data == []
    for _ in range(2):
        await create(file=("a.jsonl", b"x" * 1000), purpose="batch")
    assert await param(openai.APIStatusError, file=("a.jsonl", b"x" * 1000)) == "file", "500 bytes are left"

    url = f"{setup.url}/v1/files"
    for headers, body in (
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\ncontent-disposition: form-data; name=purpose"),
    ):
        async with setup.http.post(url, data=io.BytesIO(body), headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_form")
    for query in ("limit=0", "order=up", "after=none"):
        async with setup.http.get(f"{url}?{query}") as response:
            assert response.status == 400 and (await response.json())["error"]["param"] == query.partition("=")[0]
    async with setup.http.put(url) as response:
        assert (response.status, response.headers["allow"]) == (405, "GET, POST")


async def test_what_is_old_or_was_cut_off_is_deleted(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, file_retention=0.001)
    files = setup.gateway.storage.files
    await setup.openai.files.create(file=("a.jsonl", b"{}"), purpose="batch")

    async def cut_off() -> AsyncIterator[bytes]:
        yield b"{}"
        assert len(list((tmp_path / "files").glob("*.part"))) == 1
        raise LookupError

    with pytest.raises(LookupError):
        await files.put("", "batch", "cut.jsonl", cut_off())
    await asyncio.sleep(0.01)
    await files._expire()
    assert files.totals == (0, 0) and list((tmp_path / "files").iterdir()) == []


async def test_without_a_place_clients_are_told(start) -> None:
    setup = await start()
    with pytest.raises(openai.NotFoundError, match="--file-store"):
        await setup.openai.files.list()
    with pytest.raises(SettingError, match="response-store"):
        GatewaySettings(file_store="/files")
    with pytest.raises(BlobError, match="absolute"):
        make_blobs("files")


@pytest.mark.parametrize("kind", ["folder", "bucket"])
async def test_bytes_are_written_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    blobs = Folder(tmp_path / "files") if kind == "folder" else Bucket(MemoryStore())
    await blobs.check()

    async def pieces(*given: bytes, fails: bool = False) -> AsyncIterator[bytes]:
        for piece in given:
            yield piece
        if fails:
            raise LookupError

    whole = b"".join(bytes([number]) * 100_000 for number in range(12))
    assert await blobs.write("one", pieces(b"before")) == 6
    with pytest.raises(LookupError):
        await blobs.write("one", pieces(b"half", fails=True))
    assert [piece async for piece in blobs.read("one")] == [b"before"]
    assert await blobs.write("one", pieces(whole[:700_000], whole[700_000:])) == len(whole)
    assert b"".join([piece async for piece in blobs.read("one")]) == whole
    await blobs.delete("one")
    await blobs.delete("one")
    with pytest.raises(BlobError):
        [piece async for piece in blobs.read("one")]


VALUES = st.lists(
    st.tuples(st.sampled_from(["purpose", "file"]), st.none() | st.just("a b.jsonl"), st.binary(max_size=40)),
    max_size=4,
)


def form_of(values: list[tuple[str, str | None, bytes]]) -> bytes:
    parts = []
    for name, filename, value in values:
        named = "" if filename is None else f'; filename="{filename}"'
        head = f'--mark\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        parts.append(head.encode() + value + b"\r\n")
    return b"".join(parts) + b"--mark--\r\n"


def read(form: FormStream, data: bytes, cuts: list[int]) -> Iterator[tuple[str, str | None, bytes]]:
    begun, value = PartBegin("", None), b""
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for event in form.feed(data[start:end]):
            match event:
                case PartBegin():
                    begun, value = event, b""
                case PartEnd():
                    yield begun.name, begun.filename, value
                case _:
                    value += event


@given(VALUES, st.data())
def test_a_form_is_read_however_it_is_cut(values: list[tuple[str, str | None, bytes]], data: st.DataObject) -> None:
    body = form_of([each for each in values if b"\r\n--mark" not in each[2]])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    form = FormStream("multipart/form-data; boundary=mark")
    assert list(read(form, body, cuts)) == [each for each in values if b"\r\n--mark" not in each[2]]
    form.close()


def test_a_form_with_endless_heads_or_fields_is_refused() -> None:
    form = FormStream("multipart/form-data; boundary=mark")
    with pytest.raises(ValueError, match="headers"):
        list(form.feed(b"--mark\r\n" + b"x" * (MAX_HEAD_BYTES + 9)))
    form = FormStream("multipart/form-data; boundary=mark")
    with pytest.raises(ValueError, match="fields"):
        list(form.feed(form_of([("purpose", None, b"x")] * 40)))
