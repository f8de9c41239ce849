"""GPT-2's alphabet: a letter for each byte, in which byte-level tokenizers write their tokens."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""Printable Latin-1 letters stand for the equal byte, letters from U+0100 on for the other bytes."""
_LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}


def in_letters(raw: bytes) -> str:
    return "".join(map(_LETTER_OF_BYTE.__getitem__, raw))
