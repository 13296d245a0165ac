"""Pictures in Office files and emails, and scanned pages in PDFs attached to emails, which OCR can read.

A file is parsed twice if it has such pictures: the first time, they are counted; the second time, their text is known.
Both the process that parses the file and the one that runs OCR number the pictures in the order of `pictures_of`.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.readers.files import FileAccount, FileSource, ReadLimits
from llama_index_contextual.readers.pdf.scans import ImagePages, OcrPages, Page

FORMATS = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP")
"""Formats of pictures, as Pillow names them."""
MAX_PICTURES = 1_000
"""Maximum number of pictures in a file that are read."""
MAX_FRAMES = 200
MAX_PLACES = 5
"""Maximum number of places of damaged pictures in a warning."""
MIN_WIDTH, MIN_HEIGHT, MIN_AREA = 80, 30, 15_000  # smaller pictures are icons and logos
_SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp")
_SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
_MIN_BYTES = 10_000  # minimum size of a picture if Pillow is not installed
_PACKAGES = (".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm")


class Picture(NamedTuple):
    """A picture, a page of a TIFF file, or a page of a PDF.

    Attributes:
        key: Hash of the file and number of the page in it.
        data: The bytes of the file.
        page: Number of the page, starting at 0.
    """

    key: str
    data: bytes
    page: int


class Pictures:
    """The pictures of one file, shared by an email and its attachments.

    Args:
        source: The file.
        scans: The pictures that OCR has read, by number.
    """

    def __init__(self, source: FileSource, scans: Mapping[int, Page]) -> None:
        self._source = source
        self._scans = scans
        self._unread: set[str] = set()
        self._added: set[str] = set()
        self._damaged: dict[str, str] = {}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {picture.key: number for number, picture in enumerate(pictures_of(self._source), 1)}

    @property
    def unread(self) -> tuple[int, ...]:
        """The numbers of the pictures in the text that OCR has not read."""
        numbers = (self._numbers.get(key) for key in self._unread) if self._unread else ()
        return tuple(sorted(number for number in numbers if number is not None))

    @property
    def notes(self) -> list[str]:
        """Warnings about damaged pictures."""
        places = list(dict.fromkeys(self._damaged.values()))
        if not places:
            return []
        more = f" and {pluralize(len(places) - MAX_PLACES, 'other place')}" if len(places) > MAX_PLACES else ""
        verb, them = ("is", "it") if len(self._damaged) == 1 else ("are", "them")
        pictures = f"{pluralize(len(self._damaged), 'picture')} {verb} damaged and left out"
        return [f"{pictures} ({'; '.join(places[:MAX_PLACES])}{more}): insert {them} again"]

    def text(self, data: bytes, place: str) -> str | None:
        """Return the text of a picture, or None if it is not a picture or is too small to have text.

        The text is returned only once for each picture. A damaged picture has an empty text, and is reported with
        its place, such as "slide 3".
        """
        count = count_frames(data)
        if count is None:
            self._damaged.setdefault(xxhash.xxh3_128_hexdigest(data), place)
            return ""
        if not count:
            return None
        texts = []
        for key in _keys(data, count):
            page = self._page(key)
            if page is not None and key not in self._added:
                self._added.add(key)
                texts.append(_page_text(page))
        return "\n".join(filter(None, texts))

    def pdf_pages(self, data: bytes) -> dict[int, Mapping[str, Any]]:
        """Return the pages of an attached PDF that OCR has read."""
        pages: dict[int, Mapping[str, Any]] = {}
        if self._scans:
            for number, key in enumerate(_keys(data, _count_pages(data)), 1):
                if (page := self._scans.get(self._numbers.get(key, 0))) is not None:
                    pages[number] = page
        return pages

    def add_unread_pages(self, data: bytes, numbers: tuple[int, ...]) -> None:
        """Record pages of an attached PDF that OCR should read."""
        keys = _keys(data, max(numbers, default=0))
        self._unread.update(keys[number - 1] for number in numbers)

    def _page(self, key: str) -> Page | None:
        page = self._scans.get(self._numbers.get(key, 0)) if self._scans else None
        if page is None:
            self._unread.add(key)
        return page


def _page_text(page: Page) -> str:
    """Return the text of a picture in reading order."""
    from llama_index_contextual.errors import ReadError
    from llama_index_contextual.readers.pdf.reader import read_source

    path = Path("picture.png")
    source = FileSource(path, b"", FileAccount(path, 0, ReadLimits()))
    with suppress(ReadError):
        return read_source(ImagePages(OcrPages({1: page}, [], 1, "")), source, [], {}).text
    return ""


def _keys(data: bytes, count: int) -> list[str]:
    digest = xxhash.xxh3_128_hexdigest(data)
    return [f"{digest}:{index}" for index in range(count)]


def count_frames(data: bytes) -> int | None:
    """Return the number of pages of a picture, 0 if it is small or not a picture, or None if it is damaged or empty."""
    if not data.strip(b"\0"):
        return None
    if not data.startswith(_SIGNATURES):
        return 0
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return int(len(data) >= _MIN_BYTES)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width < MIN_WIDTH or height < MIN_HEIGHT or width * height < MIN_AREA:
                return 0
            return min(getattr(image, "n_frames", 1), MAX_FRAMES) if image.format == "TIFF" else 1
    except Exception:  # noqa: BLE001 - Pillow raises various exceptions for damaged files
        return None


def _count_pages(data: bytes) -> int:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(data)
    except (pypdfium2.PdfiumError, ValueError):
        return 0
    count = len(pdf)
    pdf.close()
    return min(count, ReadLimits().max_pages)


def pictures_of(source: FileSource) -> Iterator[Picture]:
    """Yield the different pictures in an Office file or an email, and the pages of PDFs attached to the email."""
    keys: set[str] = set()
    for picture in _all_pictures(source.path.suffix.lower(), source.data, source.depth):
        if picture.key not in keys and len(keys) < MAX_PICTURES:
            keys.add(picture.key)
            yield picture


def _all_pictures(suffix: str, data: bytes, depth: int) -> Iterator[Picture]:
    from llama_index_contextual.readers.mail import MAX_MAILS, attachments

    if suffix in _PACKAGES:
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in sorted(archive.namelist()):
                if name.lower().endswith(_SUFFIXES) and not name.startswith("docProps/"):  # a preview of the file
                    yield from _frames(archive.read(name))
    elif suffix == ".eml" and depth <= MAX_MAILS:
        for kind, content in attachments(data):
            yield from _all_pictures(kind, content, depth + 1)
    elif suffix == ".pdf" and depth > 1:
        for index, key in enumerate(_keys(data, _count_pages(data))):
            yield Picture(key, data, index)
    elif suffix in _SUFFIXES:
        yield from _frames(data)


def _frames(data: bytes) -> Iterator[Picture]:
    for index, key in enumerate(_keys(data, count_frames(data) or 0)):
        yield Picture(key, data, index)
