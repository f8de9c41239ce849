"""Images: names that stand for programs of this installation. Nothing is ever pulled. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.api.names import ENGINE_IMAGE, OPERATOR_IMAGE
from fairlead_local.apiserver.status import Json


@dataclass(frozen=True, slots=True)
class Program:
    """What an image runs: the argument vector of its entrypoint, and the names by which `command` may call it."""

    entrypoint: tuple[str, ...]
    names: frozenset[str] = frozenset()


Images = Mapping[str, Program]
"""Image name without registry, tag and digest → what it runs."""

OWN_IMAGES: Images = {
    ENGINE_IMAGE: Program((sys.executable, "-m", "fairlead_engine"), frozenset({"fairlead-engine"})),
    OPERATOR_IMAGE: Program((sys.executable, "-m", "fairlead"), frozenset({"fairlead"})),
}


class ImageNotFound(Exception):
    """This machine has no such image; the text says which it has."""


class CommandRefused(Exception):
    """The container asks for a program its image does not stand for."""


def find(images: Images, image: str) -> Program:
    """Raises ImageNotFound; `docker.io/` and the tag are ignored."""
    name = image.partition("@")[0].removeprefix("docker.io/")
    if ":" in name.rpartition("/")[2]:
        name = name.rpartition(":")[0]
    if program := images.get(name):
        return program
    known = ", ".join(sorted(images))
    raise ImageNotFound(f'failed to pull "{image}": local mode runs these images only: {known}')


def words_of(program: Program, container: Json) -> Sequence[str]:
    """What follows the program's entrypoint, as the container says it. Raises CommandRefused for a foreign `command`.

    The entrypoint is this machine's and stays as it is; only the container's own words are expanded and translated.
    """
    command: Sequence[str] = container.get("command") or ()
    args: Sequence[str] = container.get("args") or ()
    if not command:
        return args
    if command[0] not in program.names:
        allowed = " or ".join(sorted(program.names)) or "no command: leave it out"
        raise CommandRefused(f'command "{command[0]}" is not in image "{container["image"]}": it has {allowed}')
    return [*command[1:], *args]
