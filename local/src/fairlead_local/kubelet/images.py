"""Images: names that stand for programs of this installation. Nothing is ever pulled. Pure."""

import shlex
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
    is_stand_in: bool = False
    """Whether it stands for whatever program the image has."""


Images = Mapping[str, Program]
"""Image name without registry, tag and digest → what it runs."""

OWN_IMAGES: Images = {
    ENGINE_IMAGE: Program((sys.executable, "-m", "fairlead_engine"), frozenset({"fairlead-engine"})),
    OPERATOR_IMAGE: Program((sys.executable, "-m", "fairlead"), frozenset({"fairlead"})),
}


def stand_in(text: str) -> tuple[str, Program]:
    """Of `IMAGE=COMMAND`: an image's name, and the command that containers of it run instead of its own program.

    Raises ValueError.
    """
    image, _, command = text.partition("=")
    name, words = _name_of(image), shlex.split(command)
    if not name or not words:
        raise ValueError(f"{text!r} is not IMAGE=COMMAND, such as vllm/vllm-openai=vllm")
    return name, Program(tuple(words), is_stand_in=True)


class ImageNotFound(Exception):
    """This machine has no such image; the text says which it has."""


class CommandRefused(Exception):
    """The container asks for a program its image does not stand for."""


def find(images: Images, image: str) -> Program:
    """Raises ImageNotFound; `docker.io/` and the tag are ignored."""
    if program := images.get(_name_of(image)):
        return program
    known = ", ".join(sorted(images))
    raise ImageNotFound(f'failed to pull "{image}": local mode runs these images only: {known}')


def _name_of(image: str) -> str:
    name = image.partition("@")[0].removeprefix("docker.io/")
    return name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name


def words_of(program: Program, container: Json) -> Sequence[str]:
    """What follows the program's entrypoint, as the container says it. Raises CommandRefused for a foreign `command`.

    The entrypoint is this machine's and stays as it is; only the container's own words are expanded and translated.
    """
    command: Sequence[str] = container.get("command") or ()
    args: Sequence[str] = container.get("args") or ()
    if not command:
        return args
    if command[0] not in program.names and not program.is_stand_in:
        allowed = " or ".join(sorted(program.names)) or "no command: leave it out"
        raise CommandRefused(f'command "{command[0]}" is not in image "{container["image"]}": it has {allowed}')
    return [*command[1:], *args]
