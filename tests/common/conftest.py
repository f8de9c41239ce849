"""What tests of chats and templates compare with."""

import functools
from typing import Any

import pytest


@pytest.fixture(scope="module")
def as_transformers() -> Any:
    """`apply_chat_template` of a tokenizer that has next to nothing else."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")))
    return functools.partial(tokenizer.apply_chat_template, tokenize=False)
