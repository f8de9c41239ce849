"""Pages for browsers: files of folders as whole answers, in gateways and engines.

Pages carry no data: their scripts ask the API for it, with the key that a person types. A browser runs scripts of the
same origin alone, and the pages' answers go nowhere else.
"""

from dataclasses import dataclass
from pathlib import Path

DOCUMENT_FOLDER = Path(__file__).parent.parent / "web"
"""`/docs`, a view of `/openapi.json`, and the parts common to all pages."""

_TYPES = {".html": b"text/html; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".css": b"text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted types without a policy: no text becomes HTML or a script, whatever a page does with it."""
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
"""Of every page and of every file that pages load."""


@dataclass(frozen=True, slots=True)
class Page:
    """One file."""

    content_type: bytes
    body: bytes


def read_pages(*folders: Path) -> dict[str, Page]:
    """Path → file: `/` is index.html, `/NAME` another NAME.html, and `/pages/FILE` what these load."""
    files = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in _TYPES)
    return {_path(file): Page(_TYPES[file.suffix], file.read_bytes()) for file in files}


def _path(file: Path) -> str:
    if file.suffix != ".html":
        return f"/pages/{file.name}"
    return "/" if file.stem == "index" else f"/{file.stem}"
