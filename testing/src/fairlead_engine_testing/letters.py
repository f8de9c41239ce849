"""A tokenizer of single letters for models whose vocabulary is too small for bytes."""

from pathlib import Path

from fairlead_engine_testing.byte_level import byte_level

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_letters(folder: Path) -> Path:
    """Ids 0 and 1 begin and end a text, then comes a letter each; what the model has beyond them has no text."""
    byte_level(["<s>", "</s>"], letters=LETTERS).save(str(folder / "tokenizer.json"))
    return folder
