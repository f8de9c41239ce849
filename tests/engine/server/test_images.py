"""Chats with images, over HTTP with the official client: what transformers would answer, and what is refused how."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import torch
from PIL import Image

from fairlead_engine_testing.hostile_images import encoded, png_notes, png_of, png_with, progressive_jpeg
from fairlead_engine_testing.vision_checkpoints import MOST_TOKENS, PAD, TEMPLATE, noise, write_vision_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """A host with images, a redirect, nothing, and something endless, that the engine may fetch from."""
    contents = {"/cat.png": encoded(noise(40, 40, 5))}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/away":
                self.send_response(302)
                self.send_header("location", "http://127.0.0.1:9/cat.png")
                self.end_headers()
            elif self.path == "/endless":
                self.send_response(200)
                self.send_header("content-length", str(2**40))
                self.end_headers()
                try:
                    while True:
                        self.wfile.write(b"\0" * 2**16)
                except OSError:
                    return
            else:
                content = contents.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("content-length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def seeing(folder, host, start_engine_in, tmp_path_factory) -> Iterator[Any]:
    """An engine that sees, as `vision`."""
    starter = start_engine_in(tmp_path_factory.mktemp("seeing"))
    engine = starter(
        "--model", str(folder), "--served-name", "vision", "--max-images", "3", "--kv-cache-memory", "4Mi",
        "--allowed-media-domains", host, "--max-num-batched-tokens", "48", "--dtype", "float32",
        "--image-memory", "96Mi",
    )  # fmt: skip
    engine.wait_ready()
    yield engine
    starter.kill()


@pytest.fixture(scope="module")
def gateway(seeing) -> Iterator[str]:
    """The URL of a gateway in front of it."""
    command = [sys.executable, "-m", "fairlead_testing.static_gateway", "--engine", f"e={seeing.url}"]
    with subprocess.Popen([*command, "--model", "vision"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.terminate()


@pytest.fixture
def client(seeing) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Reference:
    """transformers' model, processor and tokenizer on the same folder."""

    def __init__(self, folder: Path) -> None:
        import transformers
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        load = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained
        self._model = load(folder, dtype=torch.float32).eval()
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self._tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self._tokenizer.chat_template = TEMPLATE

    def answer(self, content: list[Any], num_new: int) -> tuple[int, str]:
        """Tokens of the prompt, and the text that greedy decoding gives. `content`: texts and images."""
        parts = [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in content]
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        seen = self._processor([each for each in content if not isinstance(each, str)], return_tensors="pt")
        ids: list[int] = []
        counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist())
        for token_id in self._tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [token_id] * (next(counts) if token_id == PAD else 1)
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=num_new,
                min_new_tokens=num_new, mm_token_type_ids=(tokens == PAD).int(), pad_token_id=0, **seen,
            )[0, len(ids) :]  # fmt: skip
        return len(ids), self._tokenizer.decode(found, skip_special_tokens=True)


@pytest.fixture(scope="module")
def reference(folder) -> Reference:
    return Reference(folder)


def part(content: bytes | Image.Image, mime_type: str = "image/png") -> dict[str, Any]:
    raw = content if isinstance(content, bytes) else encoded(content)
    return link(f"data:{mime_type};base64,{base64.b64encode(raw).decode()}")


def link(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def parts(content: list[Any]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} if isinstance(each, str) else part(each) for each in content]


def ask(seeing, content: Any, **fields: Any) -> httpx.Response:
    body = {"model": "vision", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    body = {**body, "temperature": 0, **fields}
    return httpx.post(f"{seeing.url}/v1/chat/completions", json=body, timeout=60)


SCENES = {
    "one": ["what is this? ", noise(90, 50, 1)],
    "two": [noise(40, 40, 2), " or ", noise(30, 100, 3), "?"],
    "large": [noise(700, 500, 4), "a"],
}


@pytest.mark.parametrize("name", SCENES)
def test_answers_are_the_references_streamed_and_whole(name, client, reference):
    content = SCENES[name]
    num_tokens, expected = reference.answer(content, 12)
    fields: dict[str, Any] = {
        "model": "vision", "messages": [{"role": "user", "content": parts(content)}], "temperature": 0,
        "max_tokens": 12, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == expected
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (num_tokens, 12)
    stream = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert chunks[-1].usage.prompt_tokens == num_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == (num_tokens - 1) // 16 * 16


@pytest.mark.parametrize(("format", "options"), [("WEBP", {"lossless": True}), ("GIF", {})])
def test_the_same_pixels_in_another_format_are_the_same_image(format, options, seeing):
    picture = noise(48, 48, 9).convert("P", palette=Image.Palette.ADAPTIVE).convert("RGB")
    texts = "the same pixels as " + format
    [bare] = parts([picture])
    line, rest = bare["image_url"]["url"][:60], bare["image_url"]["url"][60:]
    bare = {"type": "image_url", "image_url": f"{line}\n{rest}\n"}
    first = ask(seeing, [bare, {"type": "text", "text": texts}])
    again = ask(
        seeing, [part(encoded(picture, format, **options), f"image/{format.lower()}"), {"type": "text", "text": texts}]
    )
    cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (first.json()["usage"]["prompt_tokens"] - 1) // 16 * 16


def test_several_answers_and_the_number_of_tokens(seeing, reference):
    content = ["how many? ", noise(64, 64, 12)]
    num_tokens, _ = reference.answer(content, 1)
    reply = ask(seeing, parts(content), n=3, temperature=0.7).json()
    assert len(reply["choices"]) == 3 and reply["usage"]["prompt_tokens"] == num_tokens
    body = {"model": "vision", "messages": [{"role": "user", "content": parts(content)}]}
    assert httpx.post(f"{seeing.url}/tokenize", json=body).json()["count"] == num_tokens


def test_images_are_fetched_from_listed_hosts_alone(seeing, host):
    fetched = ask(seeing, [link(f"http://{host}/cat.png"), {"type": "text", "text": "fetched"}])
    sent = ask(seeing, [part(noise(40, 40, 5)), {"type": "text", "text": "fetched"}])
    assert fetched.status_code == sent.status_code == 200
    assert fetched.json()["choices"][0]["message"] == sent.json()["choices"][0]["message"]
    assert sent.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    port = host.partition(":")[2]
    for url, words in {
        "http://169.254.169.254/latest/meta-data": "allowed-media-domains",
        f"http://localhost:{port}/cat.png": "allowed-media-domains",
        f"http://{host}@example.org/cat.png": "allowed-media-domains",
        f"http://{host}.example.org/cat.png": "neither",
        "http://127.0.0.1/cat.png": "allowed-media-domains",
        "file:///etc/passwd": "neither",
        f"http://{host}/away": "redirects are not followed",
        f"http://{host}/nothing": "answers 404",
        f"http://{host}/endless": "bytes that are fetched",
        f"http://{host}/a b": "cannot be asked for",
    }.items():
        refused(ask(seeing, [link(url)]), words)


def refused(response: httpx.Response, *words: str, place: str = "messages[0].content[0].image_url") -> None:
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", place), error
    for word in words:
        assert word in error["message"], error["message"]


PICTURE = encoded(noise(60, 60))
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "bomb": (part(png_of(30_000, 30_000)), "pixels"),
    "large": (part(png_of(9_000, 9_000)), "are unpacked"),
    "thin": (part(noise(1, 300)), "over 200 times"),
    "truncated": (part(PICTURE[:-400]), "truncated or broken"),
    "cut-short": (part(PICTURE[:20]), "image"),
    "jpeg-truncated": (part(encoded(noise(60, 60), "JPEG")[:900], "image/jpeg"), "truncated or broken"),
    "text": (part(b"an image"), "cannot be read"),
    "written-as-svg": (part(b"<svg/>"), "cannot be read"),
    "tiff": (part(encoded(noise(9, 9), "TIFF")), "written as TIFF; send one of PNG, JPEG, WebP and GIF"),
    "avif": (part(encoded(noise(9, 9), "AVIF")), "written as AVIF; send one of PNG, JPEG, WebP and GIF"),
    "scans": (part(progressive_jpeg(8000, 8000, 200), "image/jpeg"), "8000 x 8000 pixels in 200 scans"),
    "memory": (part(png_of(5800, 5800, depth=16, colours=6)), "96 MiB of this server's image-memory"),
    "notes": (part(png_with(png_notes(b"zTXt", 2**23, 1000))[:-400]), "truncated or broken"),
    "empty": (part(b""), "cannot be read"),
    "svg": (part(b"<svg/>", "image/svg+xml"), "PNG, JPEG"),
    "no-type": (link("data:;base64,AAAA"), "PNG, JPEG"),
    "not-base64": (link("data:image/png;base64,!!!!"), "base64"),
    "not-written-so": (link("data:image/png,abc"), "base64"),
    "no-end-of-types": (link("data:image/png;" + "a;" * 200 + "base64,AAAA"), "must be written as"),
    "long": (link("https://example.org/" + "a" * 9000), "at most 8,192 are followed"),
    "nothing": (link(""), "neither a data: URL"),
    "no-url": ({"type": "image_url", "image_url": {}}, "url"),
    "text-as-object": ({"type": "image_url", "image_url": "data:"}, "url"),
    "null": ({"type": "image_url"}, "url"),
    "number": ({"type": "image_url", "image_url": {"url": 3}}, "url"),
    "detail": ({"type": "image_url", "image_url": {"url": "data:", "detail": "ultra"}}, "detail"),
    "unknown": ({"type": "image_url", "image_url": {"url": "data:", "size": 1}}, "size"),
}  # fmt: skip


def test_an_image_is_what_its_bytes_say_by_whichever_name(seeing):
    """Clients call a PNG a JPEG, or nothing, and put parts of Responses into chats."""
    plain = ask(seeing, [part(PICTURE)], temperature=0).json()["choices"]
    types = ("image/jpeg", "image/jpg", "application/octet-stream", "")
    others = [part(PICTURE, each) for each in types]
    url = part(PICTURE)["image_url"]["url"]
    others.append({"type": "input_image", "image_url": url, "detail": "low"})
    others.append({"type": "image_url", "image_url": {"url": url, "detail": "original"}})
    for other in others:
        assert ask(seeing, [other], temperature=0).json().get("choices") == plain, other["type"]


def test_hostile_images_are_refused_by_their_place_and_harm_nobody(seeing):
    for name, (hostile, words) in HOSTILE.items():
        response = ask(seeing, [hostile])
        assert response.status_code == 400, (name, response.text)
        refused(response, words)
    behind = ask(seeing, [{"type": "text", "text": "look: "}, part(PICTURE), part(b"no image")])
    refused(behind, "cannot be read", place="messages[0].content[2].image_url")
    assert ask(seeing, parts(["still there? ", noise(60, 60)])).status_code == 200
    assert seeing.status("/health") == 200


BOMB = part(progressive_jpeg(8000, 8000, 16), "image/jpeg")


@contextmanager
def unpacked_for_ever(seeing) -> Iterator[tuple[int, socket.socket]]:
    """A process that has a bomb to unpack and never will have done that, and the connection that it was sent by."""
    body = {"model": "vision", "messages": [{"role": "user", "content": [BOMB]}]}
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n\r\n"
    before = seeing.worker_pids()
    new: list[int] = []

    def has_begun() -> bool:
        new[:] = [pid for pid in seeing.worker_pids() - before if psutil.Process(pid).cpu_times().user > 0.05]
        return bool(new)

    with socket.create_connection(("127.0.0.1", int(seeing.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + content)
        seeing.wait_until(has_begun, "unpacking a bomb")
        os.kill(new[0], signal.SIGSTOP)
        yield new[0], connection


@pytest.fixture
def fresh(folder, start_engine) -> Any:
    """An engine that has unpacked no large image yet, and gives one all the time it wants."""
    flags = ["--served-name", "vision", "--kv-cache-memory", "4Mi", "--dtype", "float32", "--image-timeout", "1h"]
    engine = start_engine("--model", str(folder), *flags, "--drain-grace", "0", "--drain-timeout", "100ms")
    engine.wait_ready()
    assert ask(engine, parts(["a first one starts all processes ", noise(60, 60)])).status_code == 200
    return engine


def test_who_leaves_while_a_bomb_is_unpacked_frees_the_process(fresh):
    with unpacked_for_ever(fresh) as (pid, connection):
        assert ask(fresh, parts(["small ones do not wait ", noise(60, 60)])).status_code == 200
        connection.close()
        fresh.wait_until(lambda: pid not in fresh.worker_pids(), "the end of what nobody waits for")
    assert ask(fresh, [BOMB]).status_code == 200


def test_a_bomb_keeps_no_engine_from_ending(fresh):
    with unpacked_for_ever(fresh) as (pid, connection):
        fresh.process.send_signal(signal.SIGTERM)
        assert fresh.wait_exit() == 0
        fresh.wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process that unpacks")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"shut down before the request was complete" in answer


def test_what_else_is_refused_of_a_chat_with_images(seeing):
    image = part(PICTURE)
    refused(ask(seeing, [image] * 4), "max-images", place="messages")
    refused(ask(seeing, [{"type": "text", "text": "<|image_pad|>"}, image]), "places for images", place="messages")
    refused(ask(seeing, [{"type": "text", "text": "<|image_pad|>"}]), "places for images", place="messages")
    refused(
        ask(seeing, [{"type": "video_url", "video_url": {"url": "data:"}}]), "video_url", place="messages[0].content[0]"
    )
    refused(ask(seeing, [image], max_tokens=500), "context", place="max_tokens")
    refused(ask(seeing, parts([noise(64, 64)] * 3), max_tokens=500 - 3 * MOST_TOKENS), "context", place="max_tokens")


async def test_a_model_without_eyes_says_so(start_app):
    response = await start_app().chat(messages=[{"role": "user", "content": [part(PICTURE)]}])
    refused(response, "image_url", "not supported by this model", "send text parts", place="messages[0].content[0]")


def test_through_a_gateway_answers_are_the_same_and_what_is_before_an_image_is_known(gateway, seeing, reference):
    content = [
        "the gateway reads as far as this, and leaves the rest to the engine: ",
        noise(90, 70, 40),
        " what is it?",
    ]
    _, expected = reference.answer(content, 8)
    fields: dict[str, Any] = {
        "model": "vision", "messages": [{"role": "user", "content": parts(content)}], "temperature": 0,
        "max_tokens": 8, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(**fields, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == expected
        again = client.chat.completions.with_raw_response.create(**fields)
    assert json.loads(again.content)["choices"][0]["message"]["content"] == expected
    before = 1 + len("user\n") + len(content[0]) + 1  # a token for a byte, and for each of the two special ones
    assert int(again.headers["x-fairlead-predicted-cached-tokens"]) == before // 16 * 16
    assert int(again.headers["x-fairlead-cached-tokens"]) > before


def test_a_gateway_passes_images_of_megabytes_and_what_engines_say_of_them(gateway):
    url = f"{gateway}/v1/chat/completions"

    def ask(part: dict[str, Any]) -> httpx.Response:
        body = {"model": "vision", "messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
        return httpx.post(url, json=body, timeout=60)

    picture = part(noise(1600, 1200))
    assert len(picture["image_url"]["url"]) > 7_000_000
    assert ask(picture).status_code == 200
    refused(ask(part(PICTURE[:-400])), "truncated or broken")
