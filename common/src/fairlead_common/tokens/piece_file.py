"""The message of protocol buffers in SentencePiece's `tokenizer.model`: pieces, kind of model, and how a text is
normalised. `sentence_pieces` makes a tokenizer of the message."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

LARGEST_FILE = 16 * 2**20
"""Bytes; the files of models with 260,000 pieces have 5 million."""
_LONGEST_PIECE = 512
"""Characters; SentencePiece's own bound of learned pieces."""
_LONGEST_SYMBOL = 2048
"""Characters of any other piece."""
_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
"""Types of values in a message."""
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
"""Fields of the model."""


class PieceKind(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_KINDS = frozenset(map(int, PieceKind))


class Piece(NamedTuple):
    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class PieceModel:
    pieces: list[Piece]
    """By id."""
    is_unigram: bool
    byte_fallback: bool
    roles: dict[str, str]
    """Texts of bos, eos and pad tokens."""
    charsmap: bytes
    """Replacements in a text before it is cut; empty = none."""
    rules: str
    """Name of the charsmap, as `nmt_nfkc`; empty = not known."""
    dummy_prefix: bool
    """Whether a text gets a space in front."""
    removes_spaces: bool
    """Around a text, and all but one between words."""

    @property
    def unknown(self) -> int:
        return next(id for id, piece in enumerate(self.pieces) if piece.kind is PieceKind.UNKNOWN)


def read_piece_model(raw: bytes) -> PieceModel:
    """Raises ValueError, naming the part, for what is no such message or cannot be made into a tokenizer."""
    model = _PieceFields(raw, "the file")
    trainer, normalizer = model.message(_TRAINER, "trainer_spec"), model.message(_NORMALIZER, "normalizer_spec")
    kind = trainer.number(3, "model_type", 1)
    if kind not in (1, 2):
        names = {3: "words", 4: "characters"}
        raise ValueError(
            f"its model_type is {kind}{f', {names[kind]}' if kind in names else ''}; read are 1, unigram, and 2, BPE"
        )
    if trainer.number(24, "treat_whitespace_as_suffix", 0):
        raise ValueError("treat_whitespace_as_suffix is set, and spaces behind words are not supported")
    if not normalizer.number(5, "escape_whitespaces", 1):
        raise ValueError("escape_whitespaces is not set, and pieces with plain spaces are not supported")
    if model.message(_DENORMALIZER, "denormalizer_spec").raw(2, "precompiled_charsmap"):
        raise ValueError("denormalizer_spec has a precompiled_charsmap, which is not supported")
    roles = {"bos_token": (46, "<s>"), "eos_token": (47, "</s>"), "pad_token": (48, "<pad>")}
    pieces = [_piece(each, id) for id, each in enumerate(model.every(_PIECES))]
    controls = {piece.text for piece in pieces if piece.kind is PieceKind.CONTROL}
    texts = {role: trainer.text(number, role, default) for role, (number, default) in roles.items()}
    found = PieceModel(
        pieces,
        is_unigram=kind == 1,
        byte_fallback=bool(trainer.number(35, "byte_fallback", 0)),
        roles={role: text for role, text in texts.items() if text in controls},
        charsmap=normalizer.raw(2, "precompiled_charsmap"),
        rules=normalizer.text(1, "name", ""),
        dummy_prefix=bool(normalizer.number(3, "add_dummy_prefix", 1)),
        removes_spaces=bool(normalizer.number(4, "remove_extra_whitespaces", 1)),
    )
    _check(found)
    return found


def _piece(raw: bytes | int, id: int) -> Piece:
    if not isinstance(raw, bytes):
        raise ValueError(f"piece {id} is no message")
    text, score, kind = "", 0.0, 1
    for number, value in _fields(raw):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            [score] = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
        elif number <= 3:
            raise ValueError(f"piece {id} has a value of a wrong type")
    if not text or not math.isfinite(score) or kind not in _KINDS:
        raise ValueError(f"piece {id} has the text {text!r:.80}, the score {score} and the type {kind}")
    if len(text) > (_LONGEST_PIECE if kind == PieceKind.NORMAL else _LONGEST_SYMBOL):
        raise ValueError(f"piece {id} has {len(text)} characters")
    return Piece(text, score, PieceKind(kind))


def _check(model: PieceModel) -> None:
    texts: set[str] = set()
    for id, piece in enumerate(model.pieces):
        if piece.text in texts:
            raise ValueError(f"two pieces have the text {piece.text!r:.80}, the latter with the id {id}")
        texts.add(piece.text)
        if piece.kind is PieceKind.UNUSED and (model.is_unigram or len(piece.text) > 1):
            raise ValueError(f"piece {id}, {piece.text!r:.80}, is marked as unused, which is not supported")
    if (count := sum(piece.kind is PieceKind.UNKNOWN for piece in model.pieces)) != 1:
        raise ValueError(f"{count} of its {len(model.pieces)} pieces are the unknown one")
    of_bytes = {piece.text for piece in model.pieces if piece.kind is PieceKind.BYTE}
    if model.byte_fallback and not {f"<0x{byte:02X}>" for byte in range(256)} <= of_bytes:
        raise ValueError(f"byte_fallback is set, and there are {len(of_bytes)} pieces of bytes, not 256")


class _PieceFields:
    """Values by field; of a field given twice the last, and messages are joined, as protocol buffers have it."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._what = what
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in _fields(raw):
            self._values.setdefault(number, []).append(value)

    def every(self, number: int) -> list[int | bytes]:
        return self._values.get(number, [])

    def message(self, number: int, what: str) -> "_PieceFields":
        return _PieceFields(b"".join(self._of_bytes(number, what)), what)

    def number(self, number: int, what: str, default: int) -> int:
        value = self._values.get(number, [default])[-1]
        if not isinstance(value, int):
            raise ValueError(f"{what} in {self._what} is no number")
        return value

    def raw(self, number: int, what: str) -> bytes:
        return ([b""] + self._of_bytes(number, what))[-1]

    def text(self, number: int, what: str, default: str) -> str:
        return raw.decode() if (raw := self.raw(number, what)) else default

    def _of_bytes(self, number: int, what: str) -> list[bytes]:
        values = self._values.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise ValueError(f"{what} in {self._what} is of a wrong type")
        return [value for value in values if isinstance(value, bytes)]


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each number with its value: an integer, or the bytes of anything else."""
    at, end = 0, len(raw)
    while at < end:
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind == _NUMBER:
            value, at = _varint(raw, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(raw, at)
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if kind == _FOUR_BYTES else 8
        else:
            raise ValueError(f"it is no message of protocol buffers: field {number} is of type {kind}")
        if at + size > end:
            raise ValueError(f"it is cut, or no message of protocol buffers: field {number} ends behind the end")
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """And the place behind."""
    value = shift = 0
    for place in range(at, min(at + 10, len(raw))):
        value |= (raw[place] & 0x7F) << shift
        if raw[place] < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError("it is cut, or no message of protocol buffers: a number has no end")
