"""A bill of materials (SBOM) of an image, in CycloneDX: the Python and the Debian packages that are really in it.

cyclonedx-py, from PyPI and in an environment of its own, reads the metadata of Python packages, and holds the whole to
CycloneDX's schema; Debian's come from dpkg's list.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

from caches import alone, cache
from cluster.commands import ClusterError, Progress, run
from images.archive import ImageArchive
from images.layout import REPOSITORY

PINS = REPOSITORY / "requirements" / "release.txt"
TYPE = "application/vnd.cyclonedx+json"
"""Of the document."""
_METADATA = re.compile(r"opt/fairlead/lib/python3[.][0-9]+/site-packages/([^/]+[.]dist-info/.+)")
_DPKG = "var/lib/dpkg/status"
_CHECK = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(error) if error else 0)
"""


def tool(progress: Progress) -> Path:
    """The Python of the environment that has cyclonedx-py, which is made where it is missing."""
    pins = PINS.read_text()
    folder = cache("sbom")
    python, done = folder / "bin" / "python", folder / "pins.txt"
    with alone(folder.parent / "sbom.lock", lambda: progress.say("Waiting for another one that installs cyclonedx-py")):
        if not done.exists() or done.read_text() != pins:
            progress.say("Installing cyclonedx-py into an environment of its own")
            run(sys.executable, "-m", "venv", "--clear", folder)
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", PINS)
            done.write_text(pins)
    return python


def bill_of_materials(archive: ImageArchive, name: str, version: str, progress: Progress) -> bytes:
    """The document, the same for the same image. Raises ClusterError where it would not be valid."""
    python = tool(progress)
    document = _python_packages(archive, python)
    document["metadata"]["component"] = {
        "type": "container", "bom-ref": "image", "name": name, "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }  # fmt: skip
    document["components"] = [*document.get("components", ()), *_debian_packages(archive)]
    known = {"image", *(each["bom-ref"] for each in document["components"])}
    others = [each for each in document.get("dependencies", ()) if each["ref"] in known]
    document["dependencies"] = [{"ref": "image", "dependsOn": sorted(known - {"image"})}, *others]
    text = json.dumps(document, indent=1, sort_keys=True)
    run(python, "-c", _CHECK, stdin=text)
    return text.encode()


def _python_packages(archive: ImageArchive, python: Path) -> dict[str, Any]:
    """cyclonedx-py's document of an environment with the metadata that the image has."""
    with tempfile.TemporaryDirectory(prefix="fairlead-sbom-") as temporary:
        environment = Path(temporary) / "environment"
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        (packages,) = environment.glob("lib/python3*/site-packages")
        found = 0
        for path, content in archive.files(lambda path: _METADATA.fullmatch(path) is not None):
            match = _METADATA.fullmatch(path)
            assert match is not None and ".." not in PurePosixPath(path).parts, path
            place = packages / match[1]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            found += 1
        if not found:
            raise ClusterError(f"{archive.path} has no Python packages in /opt/fairlead: it is no image of ours")
        command = (python.parent / "cyclonedx-py", "environment", "--output-reproducible", "--spec-version", "1.6")
        document: dict[str, Any] = json.loads(run(*command, environment / "bin" / "python"))
    for each in document.get("components", ()):
        # Of our own wheels pip notes the folder that they were installed from.
        each.pop("externalReferences", None)
    return document


def _debian_packages(archive: ImageArchive) -> Iterator[dict[str, Any]]:
    """Components of dpkg's list; none where the image has no Debian below it."""
    if _DPKG not in archive.entries:
        return
    for paragraph in archive.read(_DPKG).decode().strip().split("\n\n"):
        told = Parser().parsestr(paragraph, headersonly=True)
        if told["Status"] != "install ok installed":
            continue
        name, version = told["Package"], told["Version"]
        purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={told['Architecture']}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
