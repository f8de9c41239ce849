"""Options and errors that several commands share."""

import argparse
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import Console

from fairlead.addresses import is_http_address
from fairlead.api.durations import parse_duration
from fairlead.client.openai import MODEL_NOT_FOUND, ApiError, OpenAIClient
from fairlead.kube.client import KubeError

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
GATEWAY_VARIABLE = "FAIRLEAD_GATEWAY"
GATEWAYS_GROUP = "fairlead.gateways"
"""Entry points of this group return the base URL of a gateway that runs on this machine, or an empty text."""
KEY_VARIABLE = "OPENAI_API_KEY"
"""What the commands send as API key, if it is set."""
LONGEST_SECONDS = 366 * 86_400.0
"""What timers and reports can take."""


class UsageError(Exception):
    """Arguments that do not fit together; exit status 2."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--gateway` and `--model`."""
    parser.add_argument(
        "--gateway",
        type=address,
        default=os.environ.get(GATEWAY_VARIABLE) or _running_gateway() or DEFAULT_GATEWAY,
        metavar="URL",
        help=f"address of the gateway, or of any OpenAI server (default: ${GATEWAY_VARIABLE}, else that of the "
        f"fleet on this machine, else {DEFAULT_GATEWAY})",
    )
    parser.add_argument("--model", type=text, help="which model to ask; may be left out where there is only one")


def _running_gateway() -> str:
    """Of a fleet on this machine, as distributions that start such fleets know it; empty where none runs."""
    return next((found for point in entry_points(group=GATEWAYS_GROUP) if (found := point.load()())), "")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """`--kubeconfig` and `--context`."""
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: as kubectl finds it")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig (default: its current one)")


def with_hint(error: Exception) -> Exception:
    """An error of the Kubernetes API or of the way to it, with what to do about it; others as they are."""
    if isinstance(error, UsageError):
        return error
    if isinstance(error, KubeError) and error.status == 404:
        return UsageError(str(error), "has this cluster Fairlead's CRD? kubectl apply -f crds/")
    if isinstance(error, KubeError) and error.status == 403:
        return UsageError(str(error), "name a namespace that you may read: --namespace")
    hint = "`fairlead local up` prints the kubeconfig to use: export KUBECONFIG=…, or --kubeconfig FILE"
    return UsageError(str(error), hint)


def address(text: str) -> str:
    """An argument that is the address of an HTTP server."""
    if is_http_address(text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not an address: write http://HOST:PORT")


def base_url(gateway: str) -> str:
    """With the /v1 that clients want, however the address was written."""
    stripped = gateway.rstrip("/")
    return stripped if stripped.endswith("/v1") else f"{stripped}/v1"


async def chosen_model(client: OpenAIClient, model: str | None) -> str:
    """The one that was asked for, else the only one there is. Raises ApiError."""
    if model:
        return model
    models = await client.models()
    if len(models) == 1:
        return next(iter(models))
    if not models:
        raise ApiError(404, "no model is ready; apply an LLMDeployment, or name one with --model to wait for it")
    raise ApiError(400, f"there are several models, choose one with --model: {', '.join(sorted(models))}")


def tell(error: Exception, gateway: str = "") -> None:
    """The error and what to do about it, on standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"error: {error}", markup=False)
    hint = getattr(error, "hint", "")
    if isinstance(error, ApiError):
        hint = _hint(error, gateway)
    if hint:
        console.print(f"hint: {hint}", markup=False)


def _hint(error: ApiError, gateway: str) -> str:
    if error.status == 0 and error.code is None:
        return f"is a gateway running at {gateway}? `fairlead local up` starts one; --gateway names another"
    if error.status == 401:
        return f"put the API key that you were given into the environment variable {KEY_VARIABLE}"
    if error.status == 404 and error.code == MODEL_NOT_FOUND:
        return f"what there is: curl {base_url(gateway)}/models"
    if error.status in (429, 503) and error.retry_after is not None:
        return f"it may work again in {error.retry_after:g} s; `fairlead top` shows what the fleet is doing"
    return ""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """For writing a file: every error says which. Those of a full disk come late, and name none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def text(given: str) -> str:
    """An argument that is sent to a server, which takes UTF-8 only."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8: byte 0x{_byte(given, error):02x}") from error
    return given


def utf8(given: str, what: str) -> str:
    """What was given, if it was text. Raises UsageError, which says what it was."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        sentence = f"{what} is not UTF-8: byte 0x{_byte(given, error):02x} after {error.start} characters"
        raise UsageError(sentence, "convert it first, for instance with `iconv -f latin1 -t utf-8`") from error
    return given


def _byte(given: str, error: UnicodeEncodeError) -> int:
    """The first one that is none of a character; Python keeps such bytes as the surrogates from 0xDC00 on."""
    return (ord(given[error.start]) - 0xDC00) & 0xFF


def api_key() -> str | None:
    """The one to send; None = none. Raises UsageError for one that no header may carry."""
    key = os.environ.get(KEY_VARIABLE, "")
    for position, character in enumerate(key):
        if not character.isprintable():
            sentence = f"{KEY_VARIABLE} has {character!r} after {position} characters, which no API key has"
            raise UsageError(sentence, "was it read from a file with several lines, or with the line ends of Windows?")
    return key or None


def duration(text: str) -> float:
    """An argument in seconds, from `500ms`, `30s`, or a bare number of seconds."""
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all: write more than 0")
    if seconds > LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a year")
    return seconds


def between(least: float, most: float) -> Callable[[str], float]:
    """An argument that is a number from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:  # nan neither
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return number

    return parse


def at_least(smallest: int) -> Callable[[str], int]:
    """An argument that is a whole number, not below `smallest`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {smallest}")
        return int(text)

    return parse
