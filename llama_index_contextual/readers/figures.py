"""Decode the pictures of files within limits, and encode them as PNG or JPEG."""

from __future__ import annotations

import hashlib
import io
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.figures import Figure, label_at_start
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
MAX_DECODED = 1_000
"""Maximum number of different pictures of a document that are decoded."""
REPEATED = 3
"""Number of times that a picture without caption is repeated in a file for it to be a logo or an icon."""
LARGE = 60_000
"""Area in square points from which a picture is no logo or icon, although it is repeated."""
MAX_TOTAL_BYTES = 20_000_000
"""Maximum size of all stored pictures of a document in bytes."""
MAX_LINES_BELOW = 3  # lines below a figure that are searched for its caption
MIN_SIDE, MIN_AREA = 40, 6_000  # in pixels: smaller pictures are icons
MAX_RATIO = 25  # of the longer side to the shorter one: longer pictures are lines and borders
COLOURS = 4_000  # a picture with more colours is a photo, which is stored as JPEG
SAMPLE = (256, 256)
FILE_NAME = re.compile(r"(?i)\S{1,200}\.(?:png|jpe?g|gif|bmp|tiff?|webp|emf|wmf|svg)")
"""Name of a file, which some programs store as the alternative text of a picture."""
QUALITY = 85
UNIFORM = 0.9995  # share of the pixels of one colour from which a picture is blank
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


def is_vector_picture(data: bytes) -> bool:
    """Return whether data begins like an SVG, EMF or WMF file."""
    is_emf = data[:4] == b"\x01\0\0\0" and data[40:44] == b" EMF"
    is_wmf = data[:4] in (b"\xd7\xcd\xc6\x9a", b"\x01\0\x09\0")
    return is_emf or is_wmf or b"<svg" in data[:1_000]


def _with_eight_bits(image: Image) -> Image:
    """Return a picture with 16 or 32 bits per pixel and channel in shades of grey of 8 bits."""
    if not image.mode.startswith(("I", "F")):
        return image
    low, high = image.getextrema()
    low, high = float(low), float(high)  # type: ignore[arg-type]
    scale = 255.0 / (high - low) if high > low else 0.0
    return image.convert("F").point(lambda value: value * scale - low * scale).convert("L")


def encoded_picture(image: Image) -> StoredPicture | None:
    """Return a picture as PNG, or as JPEG if it has many colours, or None if it is blank."""
    from PIL import Image as Images

    image = _on_white(image)
    if image.width * image.height > MAX_PIXELS:
        factor = (MAX_PIXELS / (image.width * image.height)) ** 0.5
        image = image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))), reducing_gap=2.0)
    sample = image.resize(SAMPLE, Images.Resampling.NEAREST) if image.width > SAMPLE[0] else image
    colours = sample.getcolors(COLOURS)
    if colours is not None and max(colours)[0] >= UNIFORM * sample.width * sample.height:
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
    """

    figures: list[Figure] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    _left_out: int = 0
    _faults: Counter[str] = field(default_factory=Counter)
    _decoded: dict[str, StoredPicture | None] = field(default_factory=dict)

    def add_encoded(self, figure: Figure, data: bytes) -> bool:
        """Add a figure with a picture in a format such as PNG or JPEG; return whether it was added.

        Pictures that are small, damaged, too large or in a format for drawings are left out.
        """
        key = hashlib.sha256(data).hexdigest()
        if key not in self._decoded:
            picture = decoded_picture(data) if self._has_room else None
            if isinstance(picture, str):
                self._faults[f"it {picture}"] += 1
            elif picture is None and is_vector_picture(data):
                self._faults["SVG, EMF and WMF are not drawn; save what is needed as PNG"] += 1
            self._decoded[key] = picture if isinstance(picture, StoredPicture) else None
        decoded = self._decoded[key]
        return decoded is not None and self.add(figure, decoded)

    @property
    def _has_room(self) -> bool:
        if len(self.figures) >= MAX_FIGURES or len(self._decoded) >= MAX_DECODED:
            self._left_out += 1
            return False
        return True

    def without_repeated(self) -> list[Figure]:
        """Return the figures without pictures that are repeated, such as logos, and forget these pictures.

        Pictures that are large on their slides are kept, as in presentations that show a chart again.
        """
        count = Counter(figure.sha256 for figure in self.figures if figure.sha256 and not figure.caption)
        repeated = {sha256 for sha256, number in count.items() if number >= REPEATED}
        kept = [
            figure
            for figure in self.figures
            if figure.sha256 not in repeated or figure.caption or _shown_area(figure) >= LARGE
        ]
        used = {figure.sha256 for figure in kept}
        self.pictures = {sha256: data for sha256, data in self.pictures.items() if sha256 in used}
        return [replace(figure, id=str(number)) for number, figure in enumerate(kept, 1)]

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
        notes = [f"{pluralize(count, 'picture')} left out: {fault}" for fault, count in self._faults.items()]
        if not self._left_out:
            return notes
        verb = "is" if self._left_out == 1 else "are"
        return [
            *notes,
            f"{self._left_out} of its figures {verb} left out: a document keeps up to {MAX_FIGURES} figures and"
            f" {MAX_TOTAL_BYTES / 1e6:.0f} MB of pictures",
        ]


def _shown_area(figure: Figure) -> float:
    """Return the area of a figure on its page in square points, or 0 if it is unknown."""
    left, top, right, bottom = figure.box or (0.0, 0.0, 0.0, 0.0)
    return (right - left) * (bottom - top)


def stored_picture(figure: Figure, pictures: Mapping[str, bytes]) -> StoredPicture | None:
    """Return the stored picture of a figure, or None if it has none."""
    data = pictures.get(figure.sha256)
    return None if data is None else StoredPicture(data, figure.media_type, figure.width, figure.height)


def with_captions(figures: Sequence[Figure], text: str, marked: Sequence[tuple[int, int]]) -> list[Figure]:
    """Return figures with the captions that stand next to them in a text, below them or else above them.

    A caption is marked as such in its file, or begins with a label such as "Figure 3". It belongs to one figure, or to
    all figures at its place.

    Args:
        figures: The figures, in the order of the text.
        text: The text.
        marked: Spans of the paragraphs that are marked as captions.
    """
    spans = dict(marked)
    taken: dict[tuple[int, int], int] = {}
    out: list[Figure] = []
    for figure in figures:
        if not figure.caption:
            place = min(figure.start, len(text))  # the text may have been stripped
            figure = replace(figure, start=place, end=place)
            below, above = _lines_after(text, figure), _lines_before(text, figure.start)
            for start, end in (*below, *above):
                end = spans.get(start, end)
                is_caption = start in spans or is_caption_line(text[start:end])
                if (
                    is_caption
                    and not is_table_caption(text[start:end])
                    and taken.get((start, end), start)
                    in (
                        start,
                        figure.start,
                    )
                ):
                    taken[start, end] = figure.start
                    figure = replace(figure, caption=text[start:end][:MAX_TEXT], start=start, end=end)
                    break
        out.append(figure)
    return out


def with_texts(parsed: ParsedFile, texts: Mapping[str, str]) -> ParsedFile:
    """Return a file with the texts in its figures added after their captions.

    Args:
        parsed: The file.
        texts: Text in each figure, by the id of the figure.
    """
    with_text = [figure for figure in parsed.map.figures if figure.id in texts]
    with_text.sort(key=lambda figure: figure.end)
    added = [_apart(texts[figure.id], parsed.text, figure.end) for figure in with_text]
    ends, lengths = [figure.end for figure in with_text], [0, *accumulate(map(len, added))]

    def moved(offset: int) -> int:
        return offset + lengths[bisect_left(ends, offset)]

    pieces, at = [], 0
    spans: dict[str, tuple[int, int]] = {}
    for number, (figure, text) in enumerate(zip(with_text, added, strict=True)):
        pieces += [parsed.text[at : figure.end], text]
        at = figure.end
        start = moved(figure.start) if figure.caption else at + lengths[number]
        spans[figure.id] = start, at + lengths[number + 1]
    figures = []
    for figure in parsed.map.figures:
        start, end = spans.get(figure.id, (moved(figure.start), moved(figure.end)))
        figures.append(replace(figure, start=start, end=end, text=texts.get(figure.id, "")))
    where = parsed.map
    return replace(
        parsed,
        text="".join([*pieces, parsed.text[at:]]),
        map=replace(
            where,
            page_starts=tuple(map(moved, where.page_starts)),
            headings=tuple(replace(heading, start=moved(heading.start)) for heading in where.headings),
            tables=tuple(
                table._replace(start=moved(table.start), body=moved(table.body), end=moved(table.end))
                for table in where.tables
            ),
            figures=tuple(figures),
        ),
    )


def _apart(text: str, around: str, at: int) -> str:
    """Return a text as lines of its own at an offset of another text."""
    before = "" if at == 0 or around[at - 1] == "\n" else "\n"
    return f"{before}{text}{'' if around[at : at + 1] in ('', chr(10)) else chr(10)}"


def text_in(figure: Figure, page: Mapping[str, Any]) -> str:
    """Return the text that OCR has read in a figure.

    Args:
        figure: The figure.
        page: Its page; see `Page` in `readers/pdf/scans.py`.
    """
    if figure.box is None or page["turns"]:
        return ""
    left, top, right, bottom = figure.box
    scale, lines = 72.0 / page["dpi"], []
    for text, _confidence, *edges in page["boxes"]:
        x, y = scale * sum(edges[::2]) / 4, scale * sum(edges[1::2]) / 4
        if left <= x <= right and top <= y <= bottom:
            lines.append(text)
    return " ".join(" ".join(lines).split())[:MAX_TEXT]


def _lines_after(text: str, figure: Figure) -> Iterator[tuple[int, int]]:
    """Yield the spans of the first lines after a figure, without those of its own texts."""
    at, own = figure.start, {figure.alt.strip()}
    for _ in range(MAX_LINES_BELOW):
        while at < len(text) and text[at].isspace():
            at += 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if at >= end or text.startswith("#", at):
            return
        yield at, end
        if text[at:end].strip() not in own and not is_caption_line(text[at:end]):
            return
        at = end


def _lines_before(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the span of the last line before a place."""
    end = start
    while end > 0 and text[end - 1].isspace():
        end -= 1
    first = text.rfind("\n", 0, end) + 1
    if first < end:
        yield first, end


def is_caption_line(line: str) -> bool:
    """Return whether a line begins like the caption of a figure, and not like a sentence that mentions one.

    Example:
        >>> is_caption_line("Figure 3: The pump"), is_caption_line("Figure 3 shows the pump.")
        (True, False)
    """
    label = label_at_start(line)
    rest = line[len(label) :].strip()
    return bool(label) and not rest[:1].islower()


def is_table_caption(line: str) -> bool:
    """Return whether a line is the caption of a table, a listing or an algorithm."""
    return _TABLE.match(line) is not None


_TABLE = re.compile(
    r"(?i:table|tableau|tab\.|tabelle|tabla|tabella|tabela|tabel|taulukko|таблица|listing|algorithm|box)\s*[\dIVXA]"
    r"|[表表]\s?\d"
)
