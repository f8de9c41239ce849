"""Pages for browsers over HTTP: static, without a key and without data, and what a browser may do with them."""

from pathlib import Path

import pytest

from fairlead.gateway.access import KeyedAccess

KEY = "alice-0123456789abcdef"
PAGES = ["/", "/docs"]
LOADED = [
    f"/pages/{name}" for name in ("page.css", "models.css", "api.js", "docs.js", "models.js", "chat.js", "snippets.js")
]


@pytest.fixture
async def keyed(start, tmp_path: Path):
    """A gateway that wants a key."""
    (tmp_path / "alice").write_text(KEY)
    return await start(access=KeyedAccess(tmp_path), model={"aliases": ("secret-name",)})


@pytest.mark.parametrize("path", PAGES + LOADED)
async def test_pages_need_no_key_and_have_no_data(keyed, path: str) -> None:
    async with keyed.http.get(keyed.url + path) as answer:
        text = await answer.text()
    assert answer.status == 200
    assert "secret-name" not in text and KEY not in text
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PAGES)
async def test_pages_load_nothing_from_elsewhere_and_have_nothing_inline(keyed, path: str) -> None:
    async with keyed.http.get(keyed.url + path) as answer:
        text = await answer.text()
    assert answer.content_type == "text/html" and "://" not in text
    assert "<style" not in text and " style=" not in text and " on" + "click" not in text
    assert text.count("<script") == text.count('<script type="module" src="pages/')


@pytest.mark.parametrize("path", PAGES + LOADED)
async def test_pages_take_get_and_head_alone(keyed, path: str) -> None:
    async with keyed.http.head(keyed.url + path) as answer:
        assert answer.status == 200 and int(answer.headers["content-length"]) > 0
    async with keyed.http.post(keyed.url + path) as answer:
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["/pages", "/pages/", "/pages/../app.py", "/pages/%2e%2e/app.py", "/docs/", "/docs.html", "/v1"]
)
async def test_other_paths_are_no_pages(keyed, start, path: str) -> None:
    assert b"HTTP/1.1 401 " in await keyed.answers(
        f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode()
    )
    everybody = await start()
    request = f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    told = await everybody.answers(request.encode())
    assert b"HTTP/1.1 404 " in told and b"or / in a browser" in told


@pytest.mark.parametrize("path", PAGES + LOADED)
async def test_pages_can_be_switched_off(start, path: str) -> None:
    setup = await start(pages=False)
    async with setup.http.get(setup.url + path) as answer:
        assert answer.status == 404 and "in a browser" not in await answer.text()


async def test_what_pages_ask_for_needs_the_key(keyed) -> None:
    async with keyed.http.get(f"{keyed.url}/openapi.json") as answer:
        assert answer.status == 401
    async with keyed.http.get(f"{keyed.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"}) as answer:
        assert answer.status == 200
