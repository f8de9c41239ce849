"""A tokenizer of single letters for models whose vocabulary is too small for bytes."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_letters(folder: Path) -> Path:
    """Ids 0 and 1 begin and end a text, then comes a letter each; what the model has beyond them has no text."""
    words = ["<s>", "</s>", *LETTERS]
    tokenizer = tokenizers.Tokenizer(models.BPE({text: index for index, text in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
