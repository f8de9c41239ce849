"""Prompts that fit no model are refused before they are tokenised, and what takes long is tokenised in turn."""

from typing import Any

import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer

TIMES = 1_000_000
"""So often repeated, a few words are 14 MB, which take three gigabytes and half a minute to tokenise whole."""


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were tokenised."""
    lengths: list[int] = []
    encode_each = PromptTokenizer.encode_each

    def spy(self: PromptTokenizer, texts: Any, **kwargs: Any) -> list[list[int]]:
        lengths.extend(map(len, texts))
        return encode_each(self, texts, **kwargs)

    monkeypatch.setattr(PromptTokenizer, "encode_each", spy)
    return lengths


WORDS = "one two three "
CASES = {
    "a text": ("/v1/completions", "prompt", lambda: {"prompt": WORDS * TIMES}),
    "one of several": ("/v1/completions", "prompt[2]", lambda: {"prompt": ["short", "short", WORDS * TIMES]}),
    "token ids": ("/v1/completions", "prompt[1]", lambda: {"prompt": [[5, 6], [7] * TIMES]}),
    "a chat": ("/v1/chat/completions", "messages", lambda: {"messages": [{"role": "user", "content": WORDS * TIMES}]}),
    "a text to tokenise": ("/tokenize", "prompt", lambda: {"prompt": WORDS * TIMES}),
    "a chat to tokenise": ("/tokenize", "messages", lambda: {"messages": [{"role": "user", "content": WORDS * TIMES}]}),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_fits_no_model_is_refused_untokenised(start_app: Any, encoded: list[int], case: str) -> None:
    path, place, fields = CASES[case]
    app = start_app()
    encoded.clear()  # of making the app
    response = await app.http.post(path, json={"model": "tiny", **fields()})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, place, "context_length_exceeded")
    assert "maximum context length is" in error["message"]
    assert encoded == []


async def test_more_prompts_than_may_be_are_refused_untokenised(start_app: Any, encoded: list[int]) -> None:
    app = start_app()
    encoded.clear()
    response = await app.http.post("/v1/completions", json={"model": "tiny", "prompt": ["a"] * 10_000})
    assert response.status_code == 400
    assert "10000 prompts with n = 1 are more than" in response.json()["error"]["message"]
    assert encoded == []
