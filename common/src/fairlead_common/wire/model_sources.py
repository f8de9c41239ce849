"""The source of a model's weights, as text: `SCHEME://…`. Engine and operator read sources by the same rules.

Pure: no network, no disk. A downloaded model lies below a *models folder*, in a folder whose name follows from the
source alone (`folder_name`): the operator knows the folder before the download.
"""

import hashlib
import re
from dataclasses import dataclass

DOWNLOADED = ("hf", "s3", "gs", "az", "https", "oci")
"""Schemes whose files are fetched into a models folder."""
IN_PLACE = ("demo", "file", "pvc")
"""Schemes of models that are there already."""

_SLUG_LENGTH = 60
_DIGEST_LENGTH = 12
"""Hex digits: two of a million sources share a name once in half a million times that one looks."""
_LONGEST = 1024
_OUTSIDE_SLUG = re.compile(r"[^A-Za-z0-9._-]+")
_HF_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HF_VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HF_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?")
_OCI_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+|/)[a-z0-9]+)*")
_OCI_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_OCI_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HUB_PAGE = "^https://(www[.])?(huggingface[.]co|hf[.]co)/([^/]+/[^/]+)(/(tree|blob)/.*)?/?$"
"""A model's page at Hugging Face, which people copy from a browser, in the syntax of RE2; the third group names the
model."""
_PASTED = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<model>[^/?#:@\s]+/[^/?#:@\s]+)(?P<variant>:[\w.-]+)?"
    r"(?:/(?:tree|blob)/(?P<file>[^?#\s]*))?/?(?:[?#]\S*)?",
    re.IGNORECASE,
)
"""The same as it is otherwise copied or typed: without a scheme, with what a browser adds, or in Ollama's form."""
_ON_DISK = re.compile(r"(/|\.{1,2}/|~)")
_MISSPELT = re.compile(r"([A-Za-z0-9]+):/{0,2}(?=[A-Za-z0-9])")
_REPEATED = 40
"""Characters of what was given that an error repeats."""

FORMS = {
    "hf": "hf://ORGANISATION/NAME[:QUANTISATION][@REVISION]",
    "s3": "s3://BUCKET/FOLDER",
    "gs": "gs://BUCKET/FOLDER",
    "az": "az://CONTAINER/FOLDER",
    "https": "https://HOST/FOLDER or https://HOST/FILE.tar.gz",
    "oci": "oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]",
    "demo": "demo://NAME",
    "file": "file:///FOLDER",
    "pvc": "pvc://CLAIM/FOLDER",
}
"""How a source of each scheme is written."""


class SourceError(ValueError):
    """The text is no source; the message shows the form of sources, without a possible password."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source, taken apart."""

    scheme: str
    authority: str
    """hf: the organisation, empty for a model without one; s3, gs: the bucket; az: the container; https, oci: host and
    port; demo: the name; pvc: the claim; file: empty."""
    path: str
    """Below it, without slashes at its ends; hf: the model's name; oci: the repository; file: the absolute path."""
    revision: str | None = None
    """hf: branch, tag or commit; oci: digest, else tag. None = what the source's keeper calls the latest."""
    variant: str | None = None
    """hf: the end of a name, as `Q4_K_M`, which chooses among several GGUF files; None = the source has one model."""

    @property
    def is_downloaded(self) -> bool:
        return self.scheme in DOWNLOADED

    @property
    def model_id(self) -> str:
        """Authority and path, as in names of hubs and registries."""
        return f"{self.authority}/{self.path}" if self.authority and self.path else self.authority or self.path

    @property
    def names_gguf(self) -> bool:
        """Whether the text says that the model is a GGUF file; a folder may hold one unsaid."""
        return self.variant is not None or self.path.lower().endswith(".gguf")


def parse_source(text: str) -> Source:
    """Takes a source apart. Raises SourceError."""
    if len(text) <= _LONGEST and (page := _PASTED.fullmatch(text)):
        file = (page["file"] or "").rpartition("/")[2]
        variant = f":{file.removesuffix('.gguf')}" if file.endswith(".gguf") else page["variant"] or ""
        raise SourceError(f"this is the page of a model, not its files: write hf://{page['model']}{variant}")
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in FORMS:
        raise SourceError(_refusal(scheme if mark else text, text))
    if len(text) > _LONGEST or not text.isprintable() or " " in text:
        raise SourceError(f"a source has at most {_LONGEST} characters, without spaces: {FORMS[scheme]}")
    if scheme in DOWNLOADED and "@" in rest.partition("/")[0]:
        raise SourceError(f"no user and password may stand in a source, which everybody reads: {FORMS[scheme]}")
    if scheme in DOWNLOADED and ("?" in rest or "#" in rest):
        # Where a signature would stand, which is a credential as well.
        raise SourceError(f"a source has neither '?' nor '#': {FORMS[scheme]}")
    if any(part in (".", "..") for part in rest.split("/")):
        raise SourceError(f"no part of a source may be '.' or '..': {FORMS[scheme]}")
    source = _taken_apart(scheme, rest)
    if source is None:
        raise SourceError(f"{scheme}:// is written {FORMS[scheme]}")
    return source


def _refusal(start: str, text: str) -> str:
    """Of a text without a known scheme: what was probably meant."""
    if len(text) <= _LONGEST and _ON_DISK.match(text):
        return "a folder on a disk is written file:///FOLDER, with the whole path"
    if (meant := _MISSPELT.match(text)) and meant[1].lower() in FORMS:
        return f"{meant[1].lower()}:// is written {FORMS[meant[1].lower()]}"
    if "://" not in text and len(text) <= _LONGEST and (model := _hub_model(text)) is not None and model.authority:
        return f"a model of Hugging Face is written hf://{text}"
    shown = start if len(start) <= _REPEATED else f"{start[:_REPEATED]}…"
    return f"{shown!r} starts no source: write one of {', '.join(f'{each}://' for each in FORMS)}"


def folder_name(source: str) -> str:
    """The folder of a downloaded model below a models folder: readable, and no other source's. Any text has one."""
    slug = _OUTSIDE_SLUG.sub("-", source).strip("-._")[:_SLUG_LENGTH].rstrip("-._")
    digest = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{slug}-{digest}" if slug else digest


def _taken_apart(scheme: str, rest: str) -> Source | None:
    first, _, below = rest.partition("/")
    below = below.strip("/")
    match scheme:
        case "hf":
            return _hub_model(rest)
        case "s3" | "gs" | "az":
            return Source(scheme, first, below) if _BUCKET.fullmatch(first) and below else None
        case "https":
            return Source(scheme, first, below) if _HOST.fullmatch(first) and below else None
        case "oci":
            return _image(first, below)
        case "demo":
            return Source(scheme, first, "") if first and not below else None
        case "pvc":
            return Source(scheme, first, below) if first else None
        case _:
            return Source(scheme, "", rest) if rest.startswith("/") and below else None


def _hub_model(rest: str) -> Source | None:
    name, mark, revision = rest.partition("@")
    name, colon, variant = name.partition(":")
    organisation, _, model = name.strip("/").rpartition("/")
    fits = _HF_NAME.fullmatch(model) and (not organisation or _HF_NAME.fullmatch(organisation))
    if not fits or (mark and not _HF_REVISION.fullmatch(revision)) or (colon and not _HF_VARIANT.fullmatch(variant)):
        return None
    return Source("hf", organisation, model, revision if mark else None, variant if colon else None)


def _image(registry: str, below: str) -> Source | None:
    name, at, digest = below.partition("@")
    repository, colon, tag = name.partition(":")
    fits = _HOST.fullmatch(registry) and _OCI_REPOSITORY.fullmatch(repository)
    if not fits or (at and not _OCI_DIGEST.fullmatch(digest)) or (colon and not _OCI_TAG.fullmatch(tag)):
        return None
    return Source("oci", registry, repository, digest or tag or None)
