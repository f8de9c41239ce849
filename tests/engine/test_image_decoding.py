"""Bytes that are made to take a decoder's time, memory or log, and are as small as an image may be."""

import io
import struct
import subprocess
import sys
import zlib

import pytest
from PIL import GifImagePlugin, Image

from fairlead_engine.image_settings import ImageSettings
from fairlead_engine.images.decoded_image import ImageError
from fairlead_engine.images.image_decoding import decode

SETTINGS = ImageSettings(
    image_token_id=1, patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=56 * 56, max_pixels=1280 * 784,
    mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
)  # fmt: skip


def encoded(format: str) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (16, 16)).save(target, format)
    return target.getvalue()


def png_with_wrong_entries(number: int) -> bytes:
    """Exif whose entries each claim to be larger than the image."""
    entries = b"".join(struct.pack("<HHLL", tag, 3, 2**20 + tag, 8) for tag in range(number))
    content = b"II*\0" + struct.pack("<LH", 8, number) + entries + bytes(4)
    chunk = struct.pack(">I", len(content)) + b"eXIf" + content + struct.pack(">I", zlib.crc32(b"eXIf" + content))
    whole, header = encoded("PNG"), 33
    return whole[:header] + chunk + whole[header:]


def test_pictures_of_a_film_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GIF of one pixel may have a million of them."""
    picture = b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0"
    film = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + picture * 5000 + b";"
    num_read = 0
    read = GifImagePlugin.GifImageFile._seek

    def counted(image: GifImagePlugin.GifImageFile, *args: bool | int) -> None:
        nonlocal num_read
        num_read += 1
        read(image, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(GifImagePlugin.GifImageFile, "_seek", counted)
    with pytest.raises(ImageError, match="is animated"):
        decode(film, "image/gif", SETTINGS)
    assert 0 < num_read < 10


def test_exif_in_pieces_is_refused_before_it_is_put_together() -> None:
    whole, piece = encoded("JPEG"), b"\xff\xe1\x00\x0aExif\0\0ab"
    with pytest.raises(ImageError, match="Exif in more than 256 pieces"):
        decode(whole[:2] + piece * 300 + whole[2:], "image/jpeg", SETTINGS)
    assert decode(whole[:2] + piece * 3 + whole[2:], "image/jpeg", SETTINGS).rows > 0


def test_no_entry_of_an_image_gets_a_line_on_stderr() -> None:
    code = (
        "import sys\n"
        "from fairlead_engine.image_settings import ImageSettings\n"
        "from fairlead_engine.images.image_decoding import decode\n"
        f"settings = {SETTINGS!r}\n"
        "print(decode(sys.stdin.buffer.read(), 'image/png', settings).rows)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], input=png_with_wrong_entries(50), capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"2\n", b"")


def test_of_a_jpeg_with_pictures_behind_it_the_first_is_seen() -> None:
    """As cameras write one of depth."""
    target, picture = io.BytesIO(), Image.linear_gradient("L").resize((80, 60)).convert("RGB")
    picture.save(target, "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))])
    alone = io.BytesIO()
    picture.save(alone, "JPEG")
    assert b"MPF\0" in target.getvalue()
    assert decode(target.getvalue(), "image/jpeg", SETTINGS) == decode(alone.getvalue(), "image/jpeg", SETTINGS)
