"""A process that unpacks images, started by `ImageWorkers`. It gets no more memory than an image may take.

Decoders cannot be interrupted while they work, but a process can be ended.
"""

import resource
from pathlib import Path
from typing import Any

from fairlead_engine.images.decoded_image import ImageError
from fairlead_engine.images.image_decoding import decode
from fairlead_engine.server.child_jobs import Jobs

_SLACK_BYTES = 128 * 2**20
"""For an image as it came, as the model sees it, and the rows between the two."""
_MOST_LEFT_BYTES = 128 * 2**20
"""Python and Pillow take 40 MiB of it."""


def main() -> None:
    from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

    began = _virtual_bytes()

    def done(job: Any, content: bytes) -> tuple[Any, bytes]:
        """Rows, columns and digest beside its pixels, or what is wrong with it."""
        header, settings, most_bytes = job
        if began is not None:
            resource.setrlimit(resource.RLIMIT_AS, (began + most_bytes + _SLACK_BYTES, resource.RLIM_INFINITY))
        try:
            image = decode(content, header, settings, most_bytes)
        except ImageError as error:
            return str(error), b""
        return (image.rows, image.columns, image.digest), image.pixels

    Jobs().do(done, _MOST_LEFT_BYTES)


def _virtual_bytes() -> int | None:
    """Of this process; None where nobody says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


if __name__ == "__main__":
    main()
