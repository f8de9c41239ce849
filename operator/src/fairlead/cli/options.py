"""Options and errors that several commands share."""

import argparse
import asyncio
import os
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import Console

from fairlead.api import names
from fairlead.api.quantities import parse_duration
from fairlead.client.openai import MODEL_NOT_FOUND, OpenAIClient, RequestFailed
from fairlead.kube.client import KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead_common.http.addresses import is_http_address, without_credentials

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
GATEWAY_VARIABLE = "FAIRLEAD_GATEWAY"
GATEWAYS_GROUP = "fairlead.gateways"
"""Entry points of this group return the base URL of a gateway on this machine, or an empty text."""
KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the API key to send."""
LONGEST_SECONDS = 366 * 86_400.0
"""What timers and reports can take."""


class UsageError(argparse.ArgumentTypeError):
    """Invalid or conflicting arguments; exit status 2."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


COMPLETION_SECONDS = 2.0
"""That somebody who pressed a key waits for names."""
Completer = Callable[[argparse.Namespace], Iterable[str]]
"""What a value may be, as far as it is known right now; with what has been typed so far. May raise anything."""


def completed(action: argparse.Action, completer: Completer) -> None:
    """Has shells complete the argument's value (`completion.py`)."""
    setattr(action, "completer", completer)  # noqa: B010, argcomplete's convention, of which argparse knows nothing


def _served_models(args: argparse.Namespace) -> Iterable[str]:
    async def asked() -> Iterable[str]:
        async with (
            asyncio.timeout(COMPLETION_SECONDS),
            OpenAIClient(base_url(args.gateway), api_key=api_key()) as client,
        ):
            return await client.models()

    return asyncio.run(asked())


def local_gateway() -> str:
    """Base URL of the gateway of the fleet on this machine; empty = none runs."""
    return next((found for point in entry_points(group=GATEWAYS_GROUP) if (found := point.load()())), "")


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--gateway` and `--model`."""
    parser.add_argument(
        "--gateway",
        type=address,
        default=os.environ.get(GATEWAY_VARIABLE) or local_gateway() or DEFAULT_GATEWAY,
        metavar="URL",
        help=f"address of the gateway, or of any OpenAI server (default: ${GATEWAY_VARIABLE}, else that of the "
        f"fleet on this machine, else {DEFAULT_GATEWAY}). Where it asks for a key, put yours into the environment "
        f"variable {KEY_VARIABLE}",
    )
    model = parser.add_argument(
        "--model", type=text, help="which model to ask; may be left out where there is only one"
    )
    completed(model, _served_models)


def add_cluster(parser: argparse.ArgumentParser, *, system: str) -> None:
    """Which cluster, and which namespaces of it. `system`: what the system's namespace is for."""
    parser.add_argument("-n", "--namespace", help="LLMDeployments of this namespace only (default: all namespaces)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: as kubectl finds it")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--system-namespace",
        default=names.SYSTEM_NAMESPACE,
        metavar="NAME",
        help=f"{system} (default: %(default)s)",
    )


def address(text: str) -> str:
    """Address of an HTTP server."""
    if is_http_address(text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not an address: write http://HOST:PORT")


def base_url(gateway: str) -> str:
    """The address with /v1, as clients want it."""
    stripped = gateway.rstrip("/")
    return stripped if stripped.endswith("/v1") else f"{stripped}/v1"


async def chosen_model(client: OpenAIClient, model: str | None) -> str:
    """The requested model, else the only one there is. Raises RequestFailed."""
    if model:
        return model
    models = await client.models()
    if len(models) == 1:
        return next(iter(models))
    if not models:
        raise RequestFailed(404, "no model is ready; apply an LLMDeployment, or name one with --model to wait for it")
    raise RequestFailed(400, f"there are several models, choose one with --model: {', '.join(sorted(models))}")


def console_for_words(*, stderr: bool = False) -> Console:
    """Prints sentences: a terminal's lines are broken between words, and a pipe's are not broken."""
    console = Console(stderr=stderr, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def tell(error: Exception, gateway: str = "") -> None:
    """Prints the error and a remedy on standard error."""
    console = console_for_words(stderr=True)
    gateway = without_credentials(gateway)
    console.print(f"error: {error}", markup=False)
    match error:
        case UsageError():
            hint = error.hint
        case KubeError(status=404):
            hint = "has this cluster Fairlead's CRD? kubectl apply -f crds/"
        case KubeError(status=403):
            hint = "name a namespace that you may read: --namespace"
        case KubeError() | KubeConfigError():
            hint = "`fairlead local up` prints the kubeconfig to use: export KUBECONFIG=…, or --kubeconfig FILE"
        case RequestFailed(status=0, code=None):
            hint = f"is a gateway running at {gateway}? `fairlead local up` starts one; --gateway names another"
        case RequestFailed(status=401):
            hint = f"put the API key that you were given into the environment variable {KEY_VARIABLE}"
        case RequestFailed(status=404) if error.code == MODEL_NOT_FOUND:
            hint = f"what there is: curl {base_url(gateway)}/models"
        case RequestFailed(status=429 | 503, retry_after=float(seconds)):
            hint = f"it may work again in {seconds:g} s; `fairlead top` shows what the fleet is doing"
        case _:
            return
    console.print(f"hint: {hint}", markup=False)


def text(given: str) -> str:
    """Text for a server, which takes UTF-8 only."""
    return utf8(given, repr(given))


def utf8(given: str, what: str) -> str:
    """What was given, if it was text. Raises UsageError, which says what it was."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        # The first byte that is none of a character; Python keeps such bytes as the surrogates from 0xDC00 on.
        byte = (ord(given[error.start]) - 0xDC00) & 0xFF
        sentence = f"{what} is not UTF-8: byte 0x{byte:02x} after {error.start} characters"
        raise UsageError(sentence, "convert it first, for instance with `iconv -f latin1 -t utf-8`") from error
    return given


def api_key() -> str | None:
    """The API key to send; None = none. Raises UsageError for a key that no header can carry."""
    key = os.environ.get(KEY_VARIABLE, "")
    for position, character in enumerate(key):
        if not (character.isprintable() and character <= "\xff"):  # headers are Latin-1
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


def number(is_right: Callable[[float], bool], otherwise: str) -> Callable[[str], float]:
    """A number for which `is_right` holds (never nan's); `otherwise` completes the refusal."""

    def parse(text: str) -> float:
        try:
            if is_right(value := float(text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} {otherwise}")

    return parse


def at_least(smallest: int) -> Callable[[str], int]:
    """A whole number of at least `smallest`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {smallest}")
        return int(text)

    return parse
