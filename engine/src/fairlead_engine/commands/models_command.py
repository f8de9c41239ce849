"""`fairlead-engine download`, `download-adapters`, `list-models` and `prune-models`: models in a folder."""

import argparse
import asyncio
import logging
import math
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from fairlead_common.logs import LogFormat, configure_logging
from fairlead_common.settings import BYTES
from fairlead_common.wire.downloads import SOURCES_PATH, SOURCES_PORT, DownloadFailure
from fairlead_common.wire.model_sources import SourceError, parse_source
from fairlead_engine.errors import StartError
from fairlead_engine.host import termination
from fairlead_engine.sources.certificates import trusted
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.listed_adapters import ListedAdapters
from fairlead_engine.sources.models_folder import ModelsFolder, is_held, last_used, not_writable
from fairlead_engine.sources.remote import DownloadError, unsupported
from fairlead_engine.sources.reporting import Reporter, answering, complain, size_text, told

VARIABLE = "FAIRLEAD_MODELS_FOLDER"
"""Environment variable with the models folder where none is named."""
_DEFAULT = "~/.cache/fairlead/models"
_PATIENCE_SECONDS = 8.0
"""Of a person, for a source without an answer: with the start of the program, an error comes within ten seconds."""
_LEVELS = ("debug", "info", "warning", "error")


def add_download_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="where it is: hf://ORGANISATION/NAME[:QUANTISATION][@REVISION], https://HOST/FOLDER, "
        "s3://BUCKET/FOLDER, gs://, az://, oci://REGISTRY/REPOSITORY[:TAG]",
    )
    _add_folder(parser, "--to")
    parser.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of an hf:// source that names none")
    parser.add_argument(
        "--size-limit", type=_bytes, metavar="N",
        help="bytes that all models in the folder may have, such as 100Gi: those that were least recently used and no "
        "engine serves are removed for room",
    )  # fmt: skip
    parser.add_argument(
        "--refresh", action="store_true", help="ask the source although the model is there: its branch may have moved"
    )
    parser.add_argument("--parallel", type=_positive, default=8, metavar="N", help="files at a time. Default: 8")
    parser.add_argument("--progress-port", type=_port, metavar="N", help="where GET /progress answers meanwhile")
    parser.add_argument(
        "--attended", action="store_true",
        help="a person waits for it: a bar or plain lines instead of a log, an error as one sentence, and no more than "
        f"{_PATIENCE_SECONDS:g} s for a source that does not answer",
    )  # fmt: skip
    _add_host_and_log(parser)


def add_adapters_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listed-in", required=True, metavar="FILE", help="lists a source on each line; read again and again"
    )
    _add_folder(parser, "--to")
    parser.add_argument(
        "--size-limit", type=_bytes, metavar="N",
        help="bytes that all models in the folder may have, such as 100Gi; what is listed is not removed for room",
    )  # fmt: skip
    parser.add_argument("--port", type=_port, default=SOURCES_PORT, metavar="N", help="where GET /sources answers")
    _add_host_and_log(parser)


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser, "--in")
    parser.add_argument("--json", action="store_true", help="for programs: one object, with every file's digest")


def add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="*", metavar="SOURCE", help="models to remove")
    _add_folder(parser, "--in")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="remove every model that no engine serves")
    which.add_argument(
        "--size-limit", type=_bytes, metavar="N",
        help="remove what was least recently used until the rest has so many bytes, such as 100Gi",
    )  # fmt: skip


def run_download(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 the model is there, 1 failed; the termination log has the reason, unless a person has
    been told."""
    configure_logging(args.log_level, args.log_format)
    if args.attended:
        logging.disable()
    try:
        orders = DownloadOrders(
            source=_with_revision(args.source, args.revision),
            models=_folder(args),
            size_limit=args.size_limit,
            refresh=args.refresh,
            parallel=args.parallel,
            patience_seconds=_PATIENCE_SECONDS if args.attended else math.inf,
        )
        with trusted():
            folder = asyncio.run(_download(orders, args))
    except (DownloadError, StartError) as error:
        if args.attended:
            complain(error.message)
        else:
            termination.report(error)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        print("stopped; what was fetched is kept for the next time", file=sys.stderr)
        return 128 + (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    print(folder)
    return 0


def run_adapters(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 ended by signal, 1 failed to begin."""
    configure_logging(args.log_level, args.log_format)
    try:
        with trusted():
            asyncio.run(_keep_adapters(args))
    except (DownloadError, StartError) as error:
        termination.report(error)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        pass
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Returns the exit status."""
    models = _folder(args)
    found = models.models()
    if args.json:
        rows = [
            {"folder": str(path), "in_use": is_held(path, 0.0), "last_used": last_used(path)}
            | msgspec.to_builtins(manifest)
            for path, manifest in found.items()
        ]
        unfinished = [{"folder": str(path), "bytes": size} for path, size in models.unfinished()]
        print(msgspec.json.format(msgspec.json.encode({"models": rows, "unfinished": unfinished})).decode())
        return 0
    if not found:
        print(f"no models in {models.path}")
    for path, manifest in found.items():
        use = "in use" if is_held(path, 0.0) else f"used {_ago(time.time() - last_used(path))} ago"
        print(f"{manifest.source}  {size_text(manifest.bytes)}  {manifest.revision[:12]}  {use}  {path.name}")
    for path, size in models.unfinished():
        print(f"not whole: {path.name}  {size_text(size)}")
    return 0


def run_prune(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 done, 1 a named model is in use, or missing."""
    models, status, removed = _folder(args), 0, list[Path]()
    try:
        if not models.path.is_dir():
            print(f"no models in {models.path}")
            return 1 if args.source else 0
        models.prepare()
        removed += models.sweep()
        if args.all:
            removed += [path for path in models.models() if models.remove(path)]
        elif args.size_limit is not None:
            removed += models.make_room(0, args.size_limit, "")
        for source in args.source:
            if (path := models.model(source)).is_dir() and models.remove(path):
                removed.append(path)
            else:
                problem = "is in use" if path.is_dir() else f"is not in {models.path}"
                print(f"{source} {problem}", file=sys.stderr)
                status = 1
    except (DownloadError, OSError) as error:
        told = error if isinstance(error, DownloadError) else not_writable(models.path, error)
        complain(told.message)
        status = 1
    for path in removed:
        print(f"removed {path.name}")
    return status


async def _download(orders: DownloadOrders, args: argparse.Namespace) -> Path:
    _end_at_sigterm()
    reporter = Reporter(orders.source)
    try:
        async with told(reporter, host=args.host, port=args.progress_port, attended=args.attended):
            return await download(orders, reporter)
    except DownloadError as error:
        if args.attended and error.reason == DownloadFailure.SOURCE_UNREACHABLE:
            # Nothing ends the look-up of a name in its thread, and the end of the loop would wait for it.
            complain(error.message)
            os._exit(1)
        raise


async def _keep_adapters(args: argparse.Namespace) -> None:
    _end_at_sigterm()
    adapters = ListedAdapters(Path(args.listed_in), _folder(args), size_limit=args.size_limit)

    def told() -> bytes:
        return msgspec.json.encode(adapters.report())

    async with answering(args.host, args.port, SOURCES_PATH, told, flag="--port"), adapters.kept():
        await asyncio.Event().wait()


def _end_at_sigterm() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _with_revision(source: str, revision: str | None) -> str:
    """The source with the revision, both parts of the folder's name. Raises DownloadError."""
    try:
        parsed = parse_source(source)
        if revision is not None and parsed.scheme == "hf":
            if parsed.revision is not None:
                raise SourceError(f"{source} names a revision already: leave out --revision")
            source = f"{source}@{revision}"
            parsed = parse_source(source)
        elif revision is not None:
            raise SourceError(f"--revision is for hf://: {parsed.scheme}:// has it in the source, or has none")
        if not parsed.is_downloaded:
            raise SourceError(f"{parsed.scheme}:// is where it is, and is not downloaded")
    except SourceError as error:
        raise unsupported(str(error)) from error
    return source


def _add_folder(parser: argparse.ArgumentParser, flag: str) -> None:
    parser.add_argument(
        flag, dest="models", metavar="FOLDER", help=f"the models folder. Default: ${VARIABLE}, or {_DEFAULT}"
    )


def _add_host_and_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="TEXT", help="address of it. Default: 127.0.0.1")
    parser.add_argument("--log-level", choices=_LEVELS, default="info", help="least severe lines of the log")
    parser.add_argument(
        "--log-format", choices=[str(each) for each in LogFormat], default=str(LogFormat.TEXT), help="form of the log"
    )


def _folder(args: argparse.Namespace) -> ModelsFolder:
    return ModelsFolder(Path(args.models or os.environ.get(VARIABLE) or _DEFAULT).expanduser())


def _bytes(text: str) -> int:
    units = dict(BYTES.factors)
    number = text.rstrip("".join(units))
    try:
        value = int(float(number) * (units[unit] if (unit := text[len(number) :]) else 1))
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a number of bytes, such as 100Gi, not {text!r}")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port, 1 to 65535, not {text[:20]!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
