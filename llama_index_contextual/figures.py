"""Figures of documents: pictures, drawings and charts with their captions.

A reader records the figures of a document in its `DocumentMap`, and node parsers record in the metadata of each chunk
the figures that stand in it and those that its text refers to ("see Figure 3"). The pictures themselves are files of a
part (`index/pictures.py`), named by their SHA-256 hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Self

from llama_index_contextual._utils.files import read_file
from llama_index_contextual.errors import CorruptVersionError, InputError, Remedy

FigureKind = Literal["picture", "drawing", "chart"]

EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg"}
"""File extension of each type of picture that is stored."""
MAX_PICTURE_BYTES = 4_000_000
"""Maximum size of a stored picture."""
FAR = 3
"""Distance of a figure that is neither near a sentence nor referred to by it; see `with_distances`."""
MAX_OF_CHUNK = 20
"""Maximum number of figures that are recorded in a chunk."""

_WORDS = (
    r"fig(?:ure|s|ures|uras?|uren|uur|urer)?|abb(?:ildung(?:en)?)?|bild(?:er)?|schaubild|grafik|illustrations?|diagrams?"
    r"|diagramm|charts?|exhibits?|photo(?:graph)?s?|drawings?|schemes?|schéma|plates?|maps?|graphs?|graphique|ilustraci[oó]n"
    r"|imagen|gráfico|grafico|immagine|afbeelding|obr(?:ázek)?|rys(?:unek|unku)?|ris|kuva|kuvio|şekil|slika|ábra"
    r"|рис(?:унок|унке|унка|унку)?|εικόνα|σχήμα"
)
_NUMBER = r"(?:[A-Z]{1,2}[.\-–]?)?\d{1,3}(?:[.\-–]\d{1,3}){0,3}[a-z]?(?![\w%])|[IVXL]{1,6}(?!\w)"
_EAST = r"(?:插图|图表|图片|图|圖表|圖|図表|図|그림|도표|도)"
_EAST_NUMBER = r"[\d一二三四五六七八九十]{1,4}(?:[.\-–][\d]{1,3}){0,3}(?!\d)"
_LABEL = re.compile(rf"(?:(?<!\w)(?i:{_WORDS})\.?[ \u00a0]{{0,2}}(?:{_NUMBER})|{_EAST}[ \u00a0]?{_EAST_NUMBER})")
_NUMBER_IN_LABEL = re.compile(rf"(?:{_EAST_NUMBER}|{_NUMBER})\Z")
_MORE_NUMBERS = re.compile(rf"(?:,? (?:and|or|to|und|oder|bis|et|y|e|en|og|och)|,|[ ]?[–-])[ \u00a0]({_NUMBER})")
_MAX_LABELS = 200  # maximum number of references that are read in a chunk


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a document.

    Attributes:
        id: Number of the figure in its document, starting with 1, as text.
        kind: "picture" for a photo or any other picture in the file, "drawing" for lines and shapes, or "chart" for a
            chart of an Office file, of which the values are known.
        caption: The caption, as it stands in the document, or an empty string.
        alt: Alternative text or title that the file stores with the figure.
        values: Values of a chart as lines of text.
        text: Text in a picture of a PDF, as read by OCR; it follows the caption in the document.
        start: Offset of the caption in the document's text; without a caption, of the place of the figure.
        end: Offset after the caption and the text in the figure; `start` if there is neither.
        page: Number of the physical page, slide or sheet, starting at 1, or None.
        box: Left, upper, right and lower edge on the displayed page in points from its upper left corner, or None.
        width: Width of the stored picture in pixels; 0 if there is none.
        height: Height of the stored picture in pixels.
        sha256: Hexadecimal SHA-256 hash of the stored picture, or an empty string.
        media_type: "image/png", "image/jpeg", or an empty string if there is no picture.
        folder: Folder with the stored pictures; None if the figure does not come from a project.
    """

    id: str
    kind: FigureKind = "picture"
    caption: str = ""
    alt: str = ""
    values: str = ""
    text: str = ""
    start: int = 0
    end: int = 0
    page: int | None = None
    box: tuple[float, float, float, float] | None = None
    width: int = 0
    height: int = 0
    sha256: str = ""
    media_type: str = ""
    folder: Path | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The label at the beginning of the caption, such as "Figure 3", or an empty string."""
        return label_at_start(self.caption)

    @property
    def name(self) -> str:
        """The caption on one line, or the alternative text, or "figure without caption"."""
        return " ".join((self.caption or self.alt).split()) or f"{self.kind} without caption"

    @property
    def file_name(self) -> str:
        """Name of the file with the picture, or an empty string if there is no picture."""
        return f"{self.sha256}.{EXTENSIONS.get(self.media_type, 'bin')}" if self.sha256 else ""

    @property
    def path(self) -> Path | None:
        """Path of the file with the picture, or None if there is none."""
        return None if self.folder is None or not self.sha256 else self.folder / self.file_name

    def read_bytes(self) -> bytes:
        """Return the picture as PNG or JPEG; see `media_type`.

        Raises:
            InputError: The figure has no picture.
            CorruptVersionError: The file is missing or has changed.
        """
        if self.path is None:
            raise InputError(f"Figure {self.id} has no picture: read its `values` or `alt`.", value=self.id)
        return read_picture(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Return the figure with the path of its picture as a dict that can be written as JSON."""
        return {**self.to_json(), **({"path": str(self.path)} if self.path else {})}

    def line(self, page_word: str = "page") -> str:
        """Return the caption and the page in one line, such as "Figure 3: The pump (page 4)"."""
        label = "" if self.caption or self.alt else f"Figure {self.id}: "
        return f"{label}{self.name}{f' ({page_word} {self.page})' if self.page else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return the figure as a dict that can be written as JSON, without the fields that are empty."""
        values = {name: getattr(self, name) for name in _STORED}
        return {name: value for name, value in values.items() if value or name in ("id", "start", "end")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a figure from the result of `to_json`; unknown fields are ignored."""
        known = {name: values[name] for name in _STORED if name in values}
        if known.get("box") is not None:
            known["box"] = tuple(known["box"])
        return cls(**known)

    def moved(self, by: int) -> Self:
        """Return the figure with its offsets increased by a number of characters."""
        return replace(self, start=self.start + by, end=self.end + by)


_STORED = tuple(name for name in Figure.__dataclass_fields__ if name != "folder")

_DAMAGED = Remedy(
    "Remove the document and ingest its file again; `verify()` lists all damaged pictures",
    "Run `llama-index-contextual verify {project} --repair`, which names the documents to ingest again",
)


def read_picture(path: Path) -> bytes:
    """Read a stored picture, whose name is the SHA-256 hash of its content.

    Raises:
        CorruptVersionError: The file is missing, cannot be read, or has changed.
    """
    label = "/".join(path.parts[-4:])
    try:
        data = read_file(path, MAX_PICTURE_BYTES)
    except FileNotFoundError as error:
        raise CorruptVersionError(f"{label} is missing.", file=label, remedy=_DAMAGED) from error
    except OSError as error:
        fault = f"cannot be read ({error.strerror or error})"
        raise CorruptVersionError(f"{label} {fault}.", file=label, remedy=_DAMAGED) from error
    if hashlib.sha256(data).hexdigest() != path.name.partition(".")[0]:
        raise CorruptVersionError(f"{label} has changed since it was stored.", file=label, remedy=_DAMAGED)
    return data


# ---- labels and references -------------------------------------------------------------------------------------------


def label_at_start(text: str) -> str:
    """Return the label of a figure at the beginning of a text, or an empty string.

    Example:
        >>> label_at_start("Figure 3: The pump"), label_at_start("Abb. 2-1 Ventil"), label_at_start("图 3 泵")
        ('Figure 3', 'Abb. 2-1', '图 3')
        >>> label_at_start("The figure shows a pump"), label_at_start("Table 3: Prices")
        ('', '')
    """
    match = _LABEL.match(text)
    return match[0] if match else ""


def label_key(label: str) -> str:
    """Return a label in a form in which those of captions and of references to them are equal.

    Example:
        >>> label_key("Figure 3"), label_key("Fig. 3"), label_key("Abb. 2–1"), label_key("图3")
        ('f3', 'f3', 'a2-1', '图3')
    """
    match = _NUMBER_IN_LABEL.search(label)
    return f"{label[0].lower()}{match[0].replace('–', '-')}" if match else ""


def references_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the `label_key` of each figure to which a text refers, up to a limit.

    Example:
        >>> [key for _, key in references_in("See Figure 3 and Figs. 4 and 5; siehe Abbildung 6.")]
        ['f3', 'f4', 'f5', 'a6']
    """
    for count, match in enumerate(_LABEL.finditer(text)):
        if count == _MAX_LABELS:
            return
        yield match.start(), label_key(match[0])
        if more := _MORE_NUMBERS.match(text, match.end()):
            yield more.start(1), label_key(f"{match[0][0]} {more[1]}")


# ---- figures of chunks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FigureIndex:
    """The figures of a document, from which those of a chunk are selected."""

    figures: Sequence[Figure]

    @cached_property
    def _by_label(self) -> Mapping[str, Figure]:
        """The first figure with each label."""
        labels: dict[str, Figure] = {}
        for figure in self.figures:
            if key := label_key(figure.label):
                labels.setdefault(key, figure)
        return labels

    def of_chunk(self, text: str, start: int) -> list[Figure]:
        """Return the figures in a chunk, followed by those to which its text refers.

        Args:
            text: Text of the chunk.
            start: Offset of the chunk in its document.
        """
        end = start + len(text)
        # A figure without caption stands at the end of the text before it.
        own = [
            figure
            for figure in self.figures
            if start <= figure.start <= end and (figure.start < end or not figure.caption)
        ]
        referred = (
            self._by_label.get(key) or self._by_label.get(key.rstrip("abcdefghij"))  # "3a" is a part of Figure 3
            for _, key in (references_in(text) if self._by_label else ())
        )
        distinct = {figure.id: figure for figure in (*own, *(each for each in referred if each is not None))}
        return list(distinct.values())[:MAX_OF_CHUNK]


def figures_json(figures: Iterable[Figure]) -> str:
    """Return figures as the metadata of a chunk."""
    return json.dumps([figure.to_json() for figure in figures], ensure_ascii=False)


def figures_from_json(text: object, folder: str | os.PathLike[str] | None = None) -> tuple[Figure, ...]:
    """Return the figures in the metadata of a chunk.

    Args:
        text: The metadata; there are no figures if it is None, or was not written by `figures_json`.
        folder: Folder with the pictures, or None.
    """
    if not isinstance(text, str) or not text.startswith('[{"id": '):
        return ()
    figures = _parsed(text)
    return figures if folder is None else tuple(replace(figure, folder=Path(folder)) for figure in figures)


@lru_cache(maxsize=1_024)  # for chunks that are found again
def _parsed(text: str) -> tuple[Figure, ...]:
    try:
        return tuple(map(Figure.from_json, json.loads(text)))
    except (ValueError, TypeError, AttributeError):  # metadata of another program under the same key
        return ()


def with_distances(
    figures: Sequence[Figure], text: str, start: int, end: int, page: int | None
) -> list[tuple[int, Figure]]:
    """Return the figures of a passage, nearest first, with their distances from a sentence in it.

    The distance is 0 for the figure whose caption the sentence is, 1 for those to which it refers, 2 for those on its
    page, and 3 for the others.

    Args:
        figures: The figures.
        text: The sentence.
        start: Offset of the sentence in the document.
        end: Offset after the sentence.
        page: Number of its page, or None.
    """
    keys = {key for _, key in references_in(text)}

    def distance(figure: Figure) -> int:
        if figure.start < end and start < figure.end:
            return 0
        if figure.label and label_key(figure.label) in keys:
            return 1
        return 2 if figure.page == page else 3

    return sorted(((distance(figure), figure) for figure in figures), key=itemgetter(0))
