"""Digests for sources that tell none: those that sha256sum wrote beside the files, and one of a whole listing."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from fairlead_engine.download.remote import RemoteFile

SUMS = "SHA256SUMS"
"""The file's name."""
LARGEST_LIST = 64 << 20
"""Bytes of sums, or of an index: those of the largest models have a few."""
_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?(.+)")


def read_sums(text: str) -> dict[str, str]:
    """File → hex digest, of what sha256sum writes."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2]: match[1].lower() for match in found if match}


def revision_of(files: Iterable[RemoteFile], etags: Mapping[str, str]) -> str:
    """What stands for a revision: it is another when a file is. `etags`: by path."""
    facts = [(file.path, file.size, file.sha256, etags.get(file.path)) for file in files]
    return "sha256:" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()
