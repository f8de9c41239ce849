"""This machine's pip configuration, made portable: the same indexes, wheels and certificates inside a build container.

Only what says *where packages come from* is taken over; how they are installed is the Dockerfile's matter. Folders of
this machine are mounted for the build steps, so nothing of them stays in an image.
"""

import ast
import configparser
import io
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

SOURCES = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout", "retries")
"""Options of pip that are taken over, beside the certificates."""
CERTIFICATES_INSIDE = "/run/secrets/ca.crt"
MOUNTS_INSIDE = "/mnt/pip"
"""Exists in the base image; a folder below it per mounted folder."""
_LINE = re.compile(r"^(?P<section>:env:|[\w-]+)\.(?P<option>[\w-]+)=(?P<value>.+)$")
_RANKS = {"global": 0, "install": 1, ":env:": 2}
"""Sections that `pip install` listens to; the higher wins."""


@dataclass(frozen=True)
class PipSettings:
    """A pip configuration for the inside of a build, and what must be mounted for it."""

    text: str
    """The content of a pip.conf."""
    mounts: Mapping[Path, str]
    """Folder of this machine → where the configuration expects it."""
    certificates: Path | None
    """A bundle to appear at `CERTIFICATES_INSIDE`; None: pip's own."""


def parse_listing(listing: str) -> dict[str, str]:
    """What `pip config list` prints, as option → effective value for `pip install`."""
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = _LINE.match(line.strip())
        if match is None or match["section"] not in _RANKS:
            continue
        rank, value = _RANKS[match["section"]], str(ast.literal_eval(match["value"]))
        if rank >= found.get(match["option"], (0, ""))[0]:
            found[match["option"]] = (rank, value)
    return {option: value for option, (_, value) in found.items()}


def portable(options: Mapping[str, str], certificates: Path | None) -> PipSettings:
    """The settings for a build from this machine's options. Folders that do not exist are left as they are."""
    mounts: dict[Path, str] = {}
    section = {
        option: " ".join(_moved(word, mounts) for word in options[option].split())
        for option in SOURCES
        if options.get(option)
    }
    bundle = Path(options["cert"]) if options.get("cert") else certificates
    if bundle is not None and bundle.is_file():
        section["cert"] = CERTIFICATES_INSIDE
    else:
        bundle = None
    parser = configparser.RawConfigParser()
    parser["global"] = section
    text = io.StringIO()
    parser.write(text)
    return PipSettings(text.getvalue(), mounts, bundle)


def of_this_machine() -> PipSettings:
    """What pip and TLS are configured to use here."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    return portable(parse_listing(listing), _certificates())


def _moved(word: str, mounts: dict[Path, str]) -> str:
    """`word`, or where the folder that it names is mounted, which is added to `mounts`."""
    url = urlsplit(word)
    folder = Path(unquote(url.path)) if url.scheme in ("", "file") else None
    if folder is None or not folder.is_absolute() or not folder.is_dir():
        return word
    # The files that an index links to are often beside it: the folder above comes along.
    beside = url.scheme and folder.parent != Path("/")
    shared, below = (folder.parent, f"/{folder.name}") if beside else (folder, "")
    inside = mounts.setdefault(shared, f"{MOUNTS_INSIDE}/{len(mounts)}")
    return f"{url.scheme}://{inside}{below}" if url.scheme else f"{inside}{below}"


def _certificates() -> Path | None:
    """The bundle that programs on this machine trust: a proxy's own authority is often only in there."""
    for variable in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    bundle = ssl.get_default_verify_paths().cafile
    return Path(bundle) if bundle else None
