"""Tokenizers: loaded once per digest, kept while in use, and never a reason to fail."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import fairlead_engine.demo
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.routing.replica import Limits
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.messages import ModelBrief, ModelInfo
from fairlead_common.workers.pool import Workers
from fairlead_testing.fake_engine.prompts import model_info, told

DINGHY = PromptTokenizer.from_folder(Path(fairlead_engine.demo.__file__).parent / "dinghy")


def info(template: str | None = None, **changes: object) -> ModelInfo:
    tokenizer = PromptTokenizer(DINGHY.tokenizer_json, chat_template=template, special_tokens=DINGHY.special_tokens)
    limits = Limits(max_num_seqs=8, max_num_queued_tokens=1024, max_model_len=2048)
    made = model_info("dinghy", limits, token_budget=512, num_kv_blocks=100, tokenizer=tokenizer)
    return msgspec.structs.replace(made, **{"special_tokens": tokenizer.special_tokens, **changes})


def brief(template: str | None = None, **changes: object) -> ModelBrief:
    return msgspec.convert(msgspec.to_builtins(info(template, **changes)), ModelBrief)


@pytest.fixture
async def tokenizers() -> AsyncIterator[Tokenizers]:
    tokenizers = Tokenizers()
    yield tokenizers
    tokenizers.close()


async def test_a_tokenizer_is_built_once_and_knows_what_its_engines_take(tokenizers: Tokenizers) -> None:
    first = info("x")
    await asyncio.gather(
        tokenizers.add(*told(first)),
        tokenizers.add(*told(info("x", block_size=32, max_model_len=4096))),
        tokenizers.add(*told(info("x", max_model_len=1024))),
    )
    model = tokenizers.get(first.digest)
    assert model is not None
    assert (model.max_model_len, model.block_sizes) == (4096, {16, 32})
    await tokenizers.add(*told(brief("x", max_model_len=8192)))
    assert tokenizers.get(first.digest) is model
    assert model.max_model_len == 8192


async def test_engines_that_ask_at_once_share_one_loading(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = Workers.load

    def spy(self: Workers) -> Coroutine[Any, Any, bytes]:
        loaded.append(self)
        return load(self)

    monkeypatch.setattr(Workers, "load", spy)
    one = asyncio.create_task(tokenizers.add(*told(info("x"))))
    two = asyncio.create_task(tokenizers.add(*told(info("x"))))
    while not loaded:
        await asyncio.sleep(0)
    one.cancel()  # its engine has left; the other one still wants it
    await two
    assert len(loaded) == 1
    assert tokenizers.get(info("x").digest) is not None


@pytest.mark.parametrize(
    "changes", [{"tokenizer_json": "{"}, {"chat_template": "{% if %}"}, {"digest": "of another version"}]
)
async def test_a_tokenizer_that_cannot_be_used_is_logged_once(
    tokenizers: Tokenizers, changes: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    broken = info("x", **changes)
    with caplog.at_level(logging.ERROR):
        await tokenizers.add(*told(broken))
        await tokenizers.add(*told(broken))
    assert tokenizers.get(broken.digest) is None
    assert len(caplog.records) == 1
    assert "dinghy" in caplog.text
    assert str(tokenizers.problem(broken.digest)) in caplog.text


async def test_who_says_anothers_digest_keeps_nobody_from_its_tokenizer(tokenizers: Tokenizers) -> None:
    sound = info("x")
    await tokenizers.add(*told(info("x", tokenizer_json="{}", served_name="hostile")))
    assert tokenizers.problem(sound.digest)
    await tokenizers.add(*told(sound))
    assert tokenizers.get(sound.digest) is not None and tokenizers.problem(sound.digest) is None


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer_json": '{"version": "%s"}' % ("x" * 100_000)}, {"chat_template": "{%% %s %%}" % ("x" * 100_000)}],
)
async def test_what_is_said_of_a_broken_one_is_short_however_much_it_quotes(
    tokenizers: Tokenizers, changes: dict[str, str]
) -> None:
    """It goes into every line of the gateway's signals, and into a condition."""
    broken = info("x", **changes)
    await tokenizers.add(*told(broken))
    assert "xxx" in (tokenizers.problem(broken.digest) or "") and len(tokenizers.problem(broken.digest) or "") < 1100


async def test_an_engine_whose_tokenizer_was_left_out_can_tell_it_later(tokenizers: Tokenizers) -> None:
    await tokenizers.add(*told(brief("x")))
    assert tokenizers.get(info("x").digest) is None
    await tokenizers.add(*told(info("x")))
    assert tokenizers.get(info("x").digest) is not None


async def test_what_is_in_use_stays_and_of_the_rest_a_few(tokenizers: Tokenizers) -> None:
    tokenizers._max_spare = 2
    all_of_them = [info(str(number)) for number in range(6)]
    for each in all_of_them:
        await tokenizers.add(*told(each))
    digests = [each.digest for each in all_of_them]
    tokenizers.keep([digests[0], "unknown", digests[0]])
    assert [tokenizers.get(digest) is not None for digest in digests] == [True, False, False, False, True, True]
    tokenizers.keep([digests[5]])
    tokenizers.keep([digests[4]])
    assert [tokenizers.get(digest) is not None for digest in digests] == [True, False, False, False, True, True]
    tokenizers.keep(digests)
    assert tokenizers.get(digests[0]) is not None


async def test_processes_go_with_their_tokenizers(tokenizers: Tokenizers) -> None:
    tokenizers._max_spare = 0
    for text in ("a", "b"):
        await tokenizers.add(*told(info(text)))
    tokenizers.keep([info("b").digest])
    root = psutil.Process(tokenizers._root._process.pid)  # type: ignore[union-attr]
    async with asyncio.timeout(30):
        while len(root.children(recursive=True)) > 2:  # a stem and its quick process
            await asyncio.sleep(0.01)
    tokenizers.close()
    assert not root.is_running()
