"""Forms are read and changed as another library writes them."""

import asyncio

import aiohttp
import httpx
import pytest
from aiohttp.base_protocol import BaseProtocol
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.http.forms import MAX_PARTS, Form

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


def encoded(data: dict[str, str], file: bytes) -> tuple[str, bytes]:
    request = httpx.Request("POST", "http://a", data=data, files={"file": ("model.wav", file)})
    return request.headers["content-type"], request.read()


@given(TEXTS, TEXTS, st.binary(max_size=200))
def test_a_value_is_found_and_replaced_and_the_rest_stays(model: str, prompt: str, file: bytes) -> None:
    form = Form.of(*encoded({"prompt": prompt, "model": model}, file))
    assert form.value("model") == model.encode() and form.value("prompt") == prompt.encode()
    assert form.value("file") == file and form.value("filename") is None
    changed = Form.of(form.content_type, form.with_value("model", b"other"))
    assert [changed.value(name) for name in ("model", "prompt", "file")] == [b"other", prompt.encode(), file]
    back = changed.with_value("model", model.encode())
    assert back == form.body


def test_a_field_that_is_not_there_is_put_first() -> None:
    form = Form.of(*encoded({}, b"abc"))
    added = Form.of(form.content_type, form.with_value("model", b"m"))
    assert (added.value("model"), added.value("file")) == (b"m", b"abc") and added.body.endswith(form.body)


async def test_other_servers_read_what_is_changed() -> None:
    form = Form.of(*encoded({"model": "m"}, b"\r\n--abc"))
    loop = asyncio.get_running_loop()
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=2**16, loop=loop)
    stream.feed_data(form.with_value("model", b"another"))
    stream.feed_eof()
    reader = aiohttp.MultipartReader({"Content-Type": form.content_type}, stream)
    parts = [await part.read() async for part in reader]  # type: ignore[union-attr]
    assert [bytes(part) for part in parts] == [b"another", b"\r\n--abc"]


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=é"])
def test_what_is_no_form_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="multipart/form-data"):
        Form.of(kind, b"{}")


def test_the_number_of_fields_is_bounded() -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n'
    assert Form.of("multipart/form-data; boundary=b", part * MAX_PARTS + b"--b--").value("a") == b"1"
    with pytest.raises(ValueError, match="fewer"):
        Form.of("multipart/form-data; boundary=b", part * (MAX_PARTS + 1) + b"--b--")


@given(st.binary(max_size=60))
def test_garbage_has_no_fields(body: bytes) -> None:
    assert Form.of("multipart/form-data; boundary=b", body).value("model") is None
