"""Unpacking images as the program of a process (`fairlead_protocol.workers`), started by `ImageWorkers`.

Decoders cannot be interrupted while they work, but a process can be ended.
"""

import pickle

import msgspec
from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401 (none waits for them)

from fairlead_engine.images.decoded_image import ImageError, Unpacked
from fairlead_engine.images.image_decoding import decode
from fairlead_protocol.workers.process import Handler


def make(payload: bytes) -> tuple[bytes, Handler]:
    """`payload`: bytes of memory that unpacking an image may take, in decimal. A job is what `decode` takes, pickled;
    its answer is `Unpacked`, as MessagePack: whoever reads it trusts no decoder."""
    most_bytes, encode = int(payload), msgspec.msgpack.Encoder().encode

    def unpack(job: bytes, takes_long: bool) -> bytes:
        content, header, settings = pickle.loads(job)
        try:
            found: Unpacked = ("", decode(content, header, settings, most_bytes))
        except ImageError as error:
            found = (str(error), None)
        return encode(found)

    return b"", unpack
