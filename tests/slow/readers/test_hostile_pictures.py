"""Hostile, broken and unusual pictures: no crash, nothing kept that should not be, and the text is always read."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from llama_index_contextual.readers import read_documents
from llama_index_contextual.readers.figures import MAX_BYTES, MAX_PIXELS, decoded_picture
from llama_index_contextual.readers.files import ReadLimits
from llama_index_contextual.readers.process import ParserProcess
from tests.support.figures import encoded, picture


def saved(image: Any, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def chunk(kind: bytes, data: bytes, *, crc: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png(width: int, height: int, data: bytes, *more: bytes, depth: int = 8, colour: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *more, chunk(b"IDAT", data), chunk(b"IEND", b"")])


def gradient(mode: str, size: tuple[int, int] = (240, 160)) -> Any:
    return Image.linear_gradient("L").resize(size).convert(mode)


def sixteen_bit_rgb() -> bytes:
    rows = b"".join(
        b"\0" + b"".join(struct.pack(">HHH", x * 250, y * 300, 65_535 - x * 250) for x in range(240))
        for y in range(160)
    )
    return png(240, 160, zlib.compress(rows), depth=16)


def animation() -> bytes:
    frames = [picture(number) for number in range(60)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def turned_with_place() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x8825] = {1: "N", 2: (48.0, 8.0, 0.0)}
    return saved(picture(4), "JPEG", exif=exif)


def huge_bitmap() -> bytes:
    header = struct.pack("<IHHIIiiHHIIiiII", 900, 0, 0, 54, 40, 2**30, 2**30, 1, 24, *[0] * 6)
    return b"BM" + header + b"\0" * 900


SCRIPT = b'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="300"><script>fetch("/")</script></svg>'

LEFT_OUT: dict[str, Callable[[], bytes]] = {
    "60,000 pixels wide, in the header only": lambda: png(60_000, 60_000, zlib.compress(b"")),
    "60,000 pixels wide, one bit each": lambda: png(
        60_000, 3_000, zlib.compress((b"\0" + b"\xaa" * 7_500) * 3_000, 9), depth=1, colour=0
    ),
    "12,000 × 12,000 pixels": lambda: saved(Image.new("1", (12_000, 12_000)), "PNG"),
    "a width of 2^31 - 1": lambda: png(2**31 - 1, 100, zlib.compress(b"\0")),
    "no height": lambda: png(300, 0, zlib.compress(b"\0")),
    "half a PNG": lambda: encoded(1)[: len(encoded(1)) // 2],
    "half a JPEG": lambda: encoded(1, "JPEG")[: len(encoded(1, "JPEG")) // 3],
    "half a WebP": lambda: encoded(1, "WEBP")[:200],
    "half a GIF": lambda: encoded(1, "GIF")[:300],
    "half a TIFF": lambda: encoded(1, "TIFF")[:5_000],
    "a JPEG without data": lambda: encoded(1, "JPEG")[:160],
    "a wrong checksum": lambda: png(
        300, 200, zlib.compress(b"\0" * 200 * 901), chunk(b"PLTE", b"\0\0\0", crc=1), colour=2
    ),
    "damaged data": lambda: png(300, 200, b"\x78\x9c" + b"\xff" * 400),
    "too little data": lambda: png(300, 200, zlib.compress(b"\0" * 50)),
    "a screen of 65,535 pixels": lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\x80\0\0" + b"\0" * 800,
    "a BMP of 2^31 pixels": huge_bitmap,
    "an SVG with a script": lambda: SCRIPT,
    "a web page": lambda: b"<html><script>alert(1)</script></html>" * 50,
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 300 200\n(rm) run\n" * 20,
    "a PDF": lambda: b"%PDF-1.7\n" + b"0" * 5_000,
    "an EMF": lambda: struct.pack("<II", 1, 108) + b"\0" * 32 + b" EMF" + b"\0" * 5_000,
    "a WMF": lambda: b"\xd7\xcd\xc6\x9a" + b"\0" * 5_000,
    "random bytes": lambda: b"\x89PNG\r\n\x1a\n" + bytes(number * 7 % 251 for number in range(9_000)),
    "nothing": lambda: b" ",
    "zeros": lambda: bytes(20_000),
    "one colour": lambda: saved(Image.new("RGB", (400, 300), "red"), "PNG"),
    "nothing visible": lambda: saved(Image.new("RGBA", (400, 300), (9, 9, 9, 0)), "PNG"),
    "a line": lambda: saved(gradient("L", (9_000, 60)), "PNG"),
    "an icon": lambda: encoded(1, size=(32, 32)),
}

KEPT: dict[str, Callable[[], bytes]] = {
    "CMYK in JPEG": lambda: saved(picture(2).convert("CMYK"), "JPEG"),
    "CMYK in TIFF": lambda: saved(picture(2).convert("CMYK"), "TIFF"),
    "grey in 16 bits": lambda: saved(gradient("I").convert("I;16"), "PNG"),
    "grey in 16 bits, in TIFF": lambda: saved(gradient("I").convert("I;16"), "TIFF"),
    "grey in 32 bits": lambda: saved(gradient("F"), "TIFF"),
    "colours in 16 bits": sixteen_bit_rgb,
    "a transparent palette": lambda: saved(picture(3).quantize(16), "PNG", transparency=0),
    "grey with transparency": lambda: saved(gradient("LA"), "PNG"),
    "an animation": animation,
    "several pages": lambda: saved(picture(5), "TIFF", save_all=True, append_images=[picture(6)] * 20),
    "25 million pixels": lambda: saved(gradient("L", (5_000, 5_000)), "PNG"),
    "a JPEG with an archive behind it": lambda: encoded(7, "JPEG") + b"PK\x03\x04" + b"<script>" * 400,
    "a JPEG on its side, with a place": turned_with_place,
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_picture_that_cannot_be_shown_is_left_out(name: str) -> None:
    assert decoded_picture(LEFT_OUT[name]()) is None or isinstance(decoded_picture(LEFT_OUT[name]()), str)


@pytest.mark.parametrize("name", KEPT)
def test_an_unusual_picture_is_kept_in_a_usual_form(name: str) -> None:
    stored = decoded_picture(KEPT[name]())
    assert stored is not None
    assert not isinstance(stored, str)
    assert len(stored.data) <= MAX_BYTES
    image = Image.open(io.BytesIO(stored.data))
    image.load()
    assert image.format in ("PNG", "JPEG")
    assert image.mode in ("RGB", "L", "P")
    assert (image.width, image.height) == (stored.width, stored.height)
    assert image.width * image.height <= MAX_PIXELS
    assert len(image.convert("L").getcolors(1 << 24) or ()) > 1
    assert not image.getexif()
    assert b"script" not in stored.data


def test_a_picture_on_its_side_is_turned() -> None:
    stored = decoded_picture(turned_with_place())
    assert stored is not None
    assert not isinstance(stored, str)
    assert (stored.width, stored.height) == (160, 240)


def test_no_picture_prevents_its_documents_from_being_read(tmp_path: Path) -> None:
    """Each picture is in a page of HTML and in an email; both are read in a child process."""
    pictures = {**LEFT_OUT, **KEPT}
    for number, make in enumerate(pictures.values()):
        (tmp_path / f"{number}.png").write_bytes(make())
        image = f'<img src="{number}.png" alt="Picture {number} of it">'
        (tmp_path / f"{number}.html").write_text(f"<p>Text {number}.</p>{image}")
        boundary = b"\r\n--=\r\n"
        mail = [
            b"From: a@example.com\r\nSubject: Picture\r\nContent-Type: multipart/mixed; boundary==\r\n",
            b"Content-Type: text/plain\r\n\r\nThe text of the mail is read.",
            b"Content-Type: image/png\r\nContent-Disposition: attachment; filename=p.png\r\n"
            b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.encodebytes(make()),
        ]
        (tmp_path / f"{number}.eml").write_bytes(boundary.join(mail) + b"\r\n--=--\r\n")
    files = [tmp_path / f"{number}.{kind}" for number in range(len(pictures)) for kind in ("html", "eml")]
    result = read_documents(files, ocr=None)
    assert [file.reason for file in result.skipped if "same content" not in file.reason] == []
    parser = ParserProcess()
    kept = []
    for number in range(len(pictures)):
        parsed = parser.read(tmp_path / f"{number}.html", reader="office", limits=ReadLimits())
        assert f"Text {number}." in parsed.text
        kept.append(len(parsed.map.figures))
    parser.close()
    assert kept == [0] * len(LEFT_OUT) + [1] * len(KEPT)
