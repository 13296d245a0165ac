"""Decode the pictures of files within limits, and encode them as PNG or JPEG."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llama_index_contextual.figures import Figure
from llama_index_contextual.readers.files import ParsedFile

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP")
"""Formats of pictures that are read, as Pillow names them. SVG, EMF and WMF are programs that draw, and are not run."""
DPI = 150
"""Resolution in which figures of PDFs are drawn."""
MAX_PIXELS = 2_000_000
"""Maximum number of pixels of a stored picture; a larger one is scaled down."""
MAX_SOURCE_PIXELS = 60_000_000
"""Maximum number of pixels of a picture that is decoded."""
MAX_SIDE = 20_000
"""Maximum width and height of a picture that is decoded."""
MAX_BYTES = 2_000_000
"""Maximum size of a stored picture in bytes."""
MAX_FIGURES = 300
"""Maximum number of figures of a document."""
MAX_TOTAL_BYTES = 20_000_000
"""Maximum size of all stored pictures of a document in bytes."""
MIN_SIDE, MIN_AREA = 40, 6_000  # in pixels: smaller pictures are icons
MAX_RATIO = 25  # of the longer side to the shorter one: longer pictures are lines and borders
COLOURS = 4_000  # a picture with more colours is a photo, which is stored as JPEG
SAMPLE = (256, 256)
QUALITY = 85
MAX_TEXT = 2_000
"""Maximum length of a caption, an alternative text or the values of a chart in characters."""


@dataclass(frozen=True)
class StoredPicture:
    """A picture as it is stored.

    Attributes:
        data: The bytes.
        media_type: "image/png" or "image/jpeg".
        width: Width in pixels.
        height: Height in pixels.
    """

    data: bytes
    media_type: str
    width: int
    height: int

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 hash of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def decoded_picture(data: bytes) -> StoredPicture | str | None:
    """Decode a picture of a file and encode it again.

    Return a string that says what is wrong with it if it is damaged or too large, or None if it is too small, of one
    colour only, or no picture.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if min(width, height) < MIN_SIDE or width * height < MIN_AREA:
                return None
            if max(width, height) > MAX_RATIO * min(width, height):
                return None
            if width * height > MAX_SOURCE_PIXELS or max(width, height) > MAX_SIDE:
                return f"has {width:,} × {height:,} pixels"
            image.draft("RGB", (2_000, 2_000))  # a large JPEG is decoded at a lower resolution
            return encoded_picture(ImageOps.exif_transpose(_with_eight_bits(image)))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - Pillow raises various exceptions for damaged files
        if isinstance(error, UnidentifiedImageError):
            return None
        return "is damaged"


def _with_eight_bits(image: Image) -> Image:
    """Return a picture with 16 or 32 bits per pixel and channel in shades of grey of 8 bits."""
    if not image.mode.startswith(("I", "F")):
        return image
    low, high = image.getextrema()
    low, high = float(low), float(high)  # type: ignore[arg-type]
    scale = 255.0 / (high - low) if high > low else 0.0
    return image.convert("F").point(lambda value: value * scale - low * scale).convert("L")


def encoded_picture(image: Image) -> StoredPicture | None:
    """Return a picture as PNG, or as JPEG if it has many colours, or None if it has only one colour."""
    from PIL import Image as Images

    image = _on_white(image)
    if image.width * image.height > MAX_PIXELS:
        factor = (MAX_PIXELS / (image.width * image.height)) ** 0.5
        image = image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))), reducing_gap=2.0)
    sample = image.resize(SAMPLE, Images.Resampling.NEAREST) if image.width > SAMPLE[0] else image
    colours = sample.getcolors(COLOURS)
    if colours is not None and len(image.getcolors(256) or colours) < 2:
        return None
    data, media_type = _png(image, colours), "image/png"
    if colours is None or len(data) > MAX_BYTES:
        data, media_type = _jpeg(image), "image/jpeg"
    while len(data) > MAX_BYTES:
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))
        data = _jpeg(image)
    return StoredPicture(data, media_type, image.width, image.height)


def _on_white(image: Image) -> Image:
    from PIL import Image as Images

    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Images.alpha_composite(Images.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _png(image: Image, colours: Any) -> bytes:
    if colours is None:  # a photo
        return b""
    from PIL import Image as Images

    if image.mode == "RGB" and len(colours) <= 256:
        image = image.quantize(256, dither=Images.Dither.NONE)
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=6)
    return out.getvalue()


def _jpeg(image: Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


@dataclass
class FigureCollector:
    """The figures of a document with their pictures, within the limits for a document.

    Attributes:
        figures: The figures.
        pictures: The stored pictures, by their SHA-256 hash.
        warnings: What was left out.
    """

    figures: list[Figure] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _left_out: int = 0

    def add(self, figure: Figure, picture: StoredPicture | None) -> bool:
        """Add a figure with its picture, or without one if its size exceeds the limit; return whether it was added."""
        if len(self.figures) >= MAX_FIGURES:
            self._left_out += 1
            return False
        if picture is not None:
            sha256 = picture.sha256
            size = sum(map(len, self.pictures.values()))
            if sha256 not in self.pictures and size + len(picture.data) > MAX_TOTAL_BYTES:
                self._left_out += 1
                return False
            self.pictures[sha256] = picture.data
            figure = replace(
                figure, sha256=sha256, media_type=picture.media_type, width=picture.width, height=picture.height
            )
        texts = {name: getattr(figure, name)[:MAX_TEXT] for name in ("alt", "values")}
        self.figures.append(replace(figure, id=str(len(self.figures) + 1), **texts))
        return True

    @property
    def is_full(self) -> bool:
        """Whether no further figure is added."""
        return self._left_out > 0 or len(self.figures) >= MAX_FIGURES

    def added_to(self, parsed: ParsedFile, notes: Sequence[str] = ()) -> ParsedFile:
        """Return a file with these figures and pictures, and with the warnings about them and further `notes`."""
        return replace(
            parsed,
            map=replace(parsed.map, figures=tuple(self.figures)),
            pictures=self.pictures,
            warnings=(*parsed.warnings, *self.notes(), *notes),
        )

    def notes(self) -> list[str]:
        """Return the warnings, with one about the figures beyond the limits."""
        if not self._left_out:
            return self.warnings
        verb = "is" if self._left_out == 1 else "are"
        return [
            *self.warnings,
            f"{self._left_out} of its figures {verb} left out: a document keeps up to {MAX_FIGURES} figures and"
            f" {MAX_TOTAL_BYTES / 1e6:.0f} MB of pictures",
        ]
