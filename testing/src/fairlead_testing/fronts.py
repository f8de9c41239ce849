"""Fronts in this process, before a fake server or a real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from fairlead_common.http.connections import listening_socket
from fairlead_common.wire.blocks import extra_bytes, hash_blocks, num_cacheable_blocks
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.front_process import FrontProcess
from fairlead_testing.fake_engine.prompts import CHAT_TEMPLATE, make_tokenizer
from fairlead_testing.paged_server import PagedServer


def write_tokenizer(folder: Path) -> Path:
    """The fakes' tokenizer and chat template, as a model's folder has them."""
    (folder / "tokenizer.json").write_text(make_tokenizer().tokenizer_json)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def num_foreseen(held: set[str], prompt: str | list[int], *, size: int = 16, salt: str | None = None) -> int:
    """Tokens of a prompt, as ids or for the fakes' tokenizer, that are cached where these blocks are held."""
    ids = make_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    names = hash_blocks(ids, size, extra=extra_bytes(cache_salt=salt))[: num_cacheable_blocks(len(ids), size)]
    return size * next((index for index, each in enumerate(names) if each.hex() not in held), len(names))


def tokens_field(prompt: str | list[int]) -> dict[str, Any]:
    """The field with a prompt's ids, as gateways send it."""
    ids = make_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    return {"fairlead_prompt_tokens": {"digest": make_tokenizer().digest, "prompts": [ids]}}


class Front:
    """One that runs."""

    def __init__(self, process: FrontProcess, host: str, port: int) -> None:
        self.service = process.service
        self.host, self.port = host, port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def held(self, http: aiohttp.ClientSession) -> set[str]:
        """Names of the blocks that gateways are told of, in hex."""
        async with http.get(f"{self.url}/fairlead/v1/kv/blocks") as response:
            return {each for chain in (await response.json())["blocks"] for each in chain["hashes"]}

    async def until_exact(self, is_exact: bool = True) -> None:
        """Until the server's events tell everything, or do not any more."""
        while self.service.client.is_exact is not is_exact:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_front(server: PagedServer, folder: Path, **settings: Any) -> AsyncIterator[Front]:
    """Before that fake. `folder`: of the model's tokenizer. Waits until it is ready; drains it at the end."""
    config = FrontConfig(**{
        "engine": server.kind, "upstream_host": server.host, "upstream_port": server.port, "model": str(folder),
        "served_name": server.served_name, "events": server.publisher.endpoint,
        "replay": server.publisher.replay_endpoint, "warm_up": False,
        "max_num_seqs": server.core.limits.max_num_seqs, "max_num_batched_tokens": server.core.token_budget,
        "drain_grace": 0.0, "drain_timeout": 5.0, **settings,
    })  # fmt: skip
    async with front_with(config) as front:
        yield front


@asynccontextmanager
async def front_with(config: FrontConfig, *, seconds: float = 30.0) -> AsyncIterator[Front]:
    """Waits so long until it is ready; drains it at the end."""
    with listening_socket("127.0.0.1", 0) as listener:
        process = FrontProcess(config, listener)
        serving = asyncio.create_task(process.serve())
        try:
            async with asyncio.timeout(seconds):
                while process.service.readiness_problem() is not None and not serving.done():
                    await asyncio.sleep(0.01)
            yield Front(process, "127.0.0.1", listener.getsockname()[1])
        finally:
            process.service.drain()
            process.service.lifecycle.hurry()
            await serving
