"""Recorded arrivals of requests, as a load for a fleet in virtual time.

Formats, told apart by content: the CSV of Azure's LLM inference traces (`TIMESTAMP,ContextTokens,GeneratedTokens`;
https://github.com/Azure/AzurePublicDataset), JSON lines of Mooncake's traces (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids`; https://github.com/kvcache-ai/Mooncake), and the JSON of `fairlead bench --output`.
"""

import csv
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from fairlead.simulator.scaled_fleet import RecordedRequest
from fairlead.simulator.scaling.loads import Machine

MOST_REQUESTS = 1_000_000
LONGEST_SECONDS = 366 * 86_400.0
LATEST_SECONDS = 1e10
"""Since 1970."""
LONGEST_LINE = 2**20
"""Bytes."""
LARGEST_REPORT = 256 * 2**20
"""Bytes of a report of `fairlead bench`, which is read whole."""
MOST_TOKENS = 10_000_000
"""Of one prompt or answer."""
MOONCAKE_BLOCK = 512
"""Tokens behind each of `hash_ids`."""
LOAD_SECONDS = 10.0
"""Time over which the rate of a recording is counted, for policies that know the load beforehand."""
SHUFFLED_SECONDS = 60.0
"""Time within which further seeds put a recording's requests into another order."""
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class RecordingError(ValueError):
    """A file is no recording; one sentence that names file, line and column."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests in the order of arrival."""

    name: str
    requests: tuple[RecordedRequest, ...]
    """At least one; times since the beginning of the recording."""
    begins: datetime | None = None
    """Time of day of the beginning; None = the file says none."""

    @property
    def seconds(self) -> float:
        """From the beginning to one second after the last arrival."""
        return self.requests[-1].time + 1.0

    def mean(self, field: str) -> int:
        """A field of a request, on average."""
        total: int = sum(getattr(each, field) for each in self.requests)
        return max(1, round(total / len(self.requests)))

    def load(self, machine: Machine) -> tuple[float, ...]:
        """Capacities of one replica asked for in each `LOAD_SECONDS`."""
        sums = [0.0] * (int(self.seconds / LOAD_SECONDS) + 1)
        for time, *tokens in self.requests:
            sums[int(time / LOAD_SECONDS)] += machine.work(*tokens)
        return tuple(each / LOAD_SECONDS for each in sums)

    def shuffled(self, seed: int) -> "Recording":
        """With another order of requests, and of the gaps between arrivals, within each `SHUFFLED_SECONDS`; seed 0 =
        as recorded."""
        if not seed:
            return self
        chance, done = random.Random(seed), []
        for number, part in self._parts():
            times = [number * SHUFFLED_SECONDS, *(each.time for each in part)]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            chance.shuffle(gaps)
            chance.shuffle(part)
            now = times[0]
            for gap, request in zip(gaps, part, strict=True):
                now = min(now + gap, times[-1])  # a sum in another order may be larger by its rounding
                done.append(request._replace(time=now))
        return replace(self, requests=tuple(done))

    def _parts(self) -> Iterator[tuple[int, list[RecordedRequest]]]:
        part: list[RecordedRequest] = []
        number = 0
        for request in self.requests:
            if (place := int(request.time / SHUFFLED_SECONDS)) != number:
                yield number, part
                number, part = place, []
            part.append(request)
        yield number, part


def stairs(rates: Sequence[float], now: float) -> float:
    """The load of `Recording.load` at a number of seconds since the beginning."""
    place = int(now / LOAD_SECONDS) if now >= 0.0 else 0
    return rates[place] if place < len(rates) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The part of a recording to play, in the recording's own time."""

    since: float = 0.0
    """Seconds after the first request of the file."""
    seconds: float = math.inf
    speed: float = 1.0
    """Requests come this many times as fast."""


_WHOLE = Section()


def read_recording(path: Path, section: Section = _WHOLE) -> Recording:
    """A part of a file. Raises RecordingError, or OSError where the file cannot be read."""
    with path.open("rb") as file:
        parsed = _parsed(file, str(path))
        kept: list[RecordedRequest] = []
        began: float | None = None
        begins: datetime | None = None
        last = 0.0
        for where, time, is_date, request in parsed:
            if began is None:
                began = time
                begins = datetime.fromtimestamp(time + section.since, UTC) if is_date else None
            elif time < last:
                raise RecordingError(f"{where} is earlier than the request before: sort the file by time")
            last, since = time, time - began - section.since
            if time - began > LONGEST_SECONDS:
                raise RecordingError(f"{where} is more than a year after the first request")
            if since >= section.seconds:
                break
            if since >= 0.0:
                kept.append(request._replace(time=since / section.speed))
            if len(kept) > MOST_REQUESTS:
                hint = "play a part of it with --for, such as --for 1h"
                raise RecordingError(f"{path} has more than {MOST_REQUESTS} requests: {hint}")
    if began is None:
        raise RecordingError(f"{path} has no requests")
    if not kept:
        raise RecordingError(
            f"{path} has no requests in this part: the last one comes {last - began:.0f} s after the first"
        )
    return Recording(path.name, tuple(kept), begins)


_Parsed = Iterator[tuple[str, float, bool, RecordedRequest]]
"""Place in the file, seconds, whether these are of a date, and the request without its time."""


def _parsed(file: BinaryIO, name: str) -> _Parsed:
    lines = _lines(file, name)
    number, first = next(((number, text) for number, text in lines if text.strip()), (0, ""))
    if not first:
        return iter(())
    if not first.lstrip().startswith("{"):
        return _csv_requests(first, number, lines, name)
    try:
        msgspec.json.decode(first)
    except msgspec.DecodeError:
        return _report_requests(first, file, name)
    return _mooncake_requests(first, number, lines, name)


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise RecordingError(f"{name}, line {number} is longer than {LONGEST_LINE} bytes: this is no recording")
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise RecordingError(f"{name}, line {number} is not UTF-8: this is no recording") from error


# -- Azure -------------------------------------------------------------------------------------------------------------


def _csv_requests(first: str, number: int, lines: Iterator[tuple[int, str]], name: str) -> _Parsed:
    heads = [each.strip() for each in _cells(first, f"{name}, line {number}")]
    if missing := [each for each in _COLUMNS if each not in heads]:
        columns = f"columns {', '.join(_COLUMNS)}, or JSON lines with timestamp, input_length, output_length"
        raise RecordingError(f"{name}, line {number} has no column {missing[0]}: a recording has {columns}")
    places = [heads.index(each) for each in _COLUMNS]
    for number, text in lines:
        if not text.strip():
            continue
        row = _cells(text, f"{name}, line {number}")
        if len(row) <= max(places):
            column = next(each for each, place in zip(_COLUMNS, places, strict=True) if place >= len(row))
            raise RecordingError(f"{name}, line {number} has no value in column {column}")
        where = f"{name}, line {number}, column"
        time, is_date = _seconds(row[places[0]].strip(), f"{where} TIMESTAMP")
        prompt = _tokens(row[places[1]], f"{where} ContextTokens")
        output = _tokens(row[places[2]], f"{where} GeneratedTokens")
        yield f"{where} TIMESTAMP", time, is_date, _request(prompt, prompt, output)


def _cells(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise RecordingError(f"{where} is no line of a CSV file: {error}") from error


def _seconds(text: str, where: str) -> tuple[float, bool]:
    """A number of seconds, or a date, which is UTC where no time zone is told."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            hint = "a date such as 2023-11-16 18:15:46.68, or a number of seconds"
            raise RecordingError(f"{where}: {text[:40]!r} is no time: write {hint}") from None
        seconds, is_date = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), True
    else:
        is_date = False
    if not 0.0 <= seconds <= LATEST_SECONDS:
        raise RecordingError(f"{where}: {text[:40]!r} is no time from 0 s, which is 1970, to {LATEST_SECONDS:.0f} s")
    return seconds, is_date


def _tokens(text: str, where: str) -> int:
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= MOST_TOKENS:
        return int(text)
    raise RecordingError(f"{where}: {text[:40]!r} is no whole number from 0 to {MOST_TOKENS}")


def _request(prompt: int, uncached: int, output: int) -> RecordedRequest:
    return RecordedRequest(0.0, max(1, prompt), max(1, uncached), max(1, output))


# -- Mooncake ----------------------------------------------------------------------------------------------------------


class MooncakeLine(msgspec.Struct, frozen=True):
    """One request of a Mooncake trace; other fields are passed over."""

    timestamp: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] = []
    """Of the blocks of the prompt; equal ids = an equal beginning."""


def _mooncake_requests(first: str, number: int, lines: Iterator[tuple[int, str]], name: str) -> _Parsed:
    """Leading blocks of earlier prompts count as cached."""
    seen: set[int] = set()
    decoder = msgspec.json.Decoder(MooncakeLine)
    for place, text in chain([(number, first)], lines):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise RecordingError(f"{name}, line {place}{_column(error)}") from error
        known = next((index for index, block in enumerate(line.hash_ids) if block not in seen), len(line.hash_ids))
        seen.update(line.hash_ids)
        uncached = max(1, line.input_length - known * MOONCAKE_BLOCK)
        where = f"{name}, line {place}, column timestamp"
        yield where, line.timestamp / 1000.0, False, _request(line.input_length, uncached, line.output_length)


def _column(error: msgspec.DecodeError) -> str:
    """`, column input_length: Expected …`, as far as the decoder knows the column."""
    sentence = str(error)
    if found := re.search(r" - at `\$\.?(\w*)[^`]*`$", sentence):
        column = f", column {found[1]}" if found[1] else ""
        return f"{column}: {sentence[: found.start()]}"
    if found := re.search(r"missing required field `(\w+)`", sentence):
        return f" has no column {found[1]}"
    return f": {sentence}"


# -- fairlead bench ----------------------------------------------------------------------------------------------------


class BenchRequest(msgspec.Struct, frozen=True):
    """A request in a report of `fairlead bench`; a request without an answer has no tokens, and gets the mean."""

    due: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
    prompt_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    output_tokens: Tokens | None = None


class BenchReport(msgspec.Struct, frozen=True):
    """The part of the report that says when requests were due."""

    requests: list[BenchRequest]


def _report_requests(first: str, file: BinaryIO, name: str) -> _Parsed:
    content = first.encode() + file.read(LARGEST_REPORT + 1)
    if len(content) > LARGEST_REPORT:
        raise RecordingError(f"{name} is a report of more than {LARGEST_REPORT} bytes")
    try:
        report = msgspec.json.decode(content, type=BenchReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{name} is neither JSON lines nor a report of `fairlead bench`: {error}") from error
    answered = [each for each in report.requests if each.prompt_tokens and each.output_tokens]
    if not answered:
        raise RecordingError(f"{name} has no answered request, so nothing is known of lengths")
    prompt = round(sum(each.prompt_tokens or 0 for each in answered) / len(answered))
    output = round(sum(each.output_tokens or 0 for each in answered) / len(answered))
    for each in sorted(report.requests, key=lambda each: each.due):
        own = each.prompt_tokens or prompt
        made = _request(own, own - (each.cached_tokens or 0), each.output_tokens or output)
        yield f"{name}, column due", each.due, False, made
