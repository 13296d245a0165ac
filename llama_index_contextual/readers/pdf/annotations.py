"""Read the values of form fields and the text of annotations, and place them next to their labels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium

from llama_index_contextual.readers.pdf.pages import Run

MAX_ANNOTATIONS = 2_000  # maximum number of annotations on a page that are read
MAX_OPTIONS = 1_000  # maximum number of options of a list that are read
MAX_CHARACTERS = 20_000  # maximum length of a value or a note
SIZE = 10.0  # font size on a page without text
NOTE_SIZE = 0.8  # times the usual font size: keeps notes apart from the text
SPACE = 0.25  # times the font size
CHECKED = "☒"
_HIDDEN = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
_CHOICES = (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON)
_LISTS = (pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX)
_BUTTONS = (pdfium.FPDF_FORMFIELD_PUSHBUTTON, pdfium.FPDF_FORMFIELD_SIGNATURE, pdfium.FPDF_FORMFIELD_UNKNOWN)
_NOTES = frozenset(
    (
        pdfium.FPDF_ANNOT_TEXT,
        pdfium.FPDF_ANNOT_FREETEXT,
        pdfium.FPDF_ANNOT_LINE,
        pdfium.FPDF_ANNOT_SQUARE,
        pdfium.FPDF_ANNOT_CIRCLE,
        pdfium.FPDF_ANNOT_POLYGON,
        pdfium.FPDF_ANNOT_POLYLINE,
        pdfium.FPDF_ANNOT_HIGHLIGHT,
        pdfium.FPDF_ANNOT_UNDERLINE,
        pdfium.FPDF_ANNOT_SQUIGGLY,
        pdfium.FPDF_ANNOT_STRIKEOUT,
        pdfium.FPDF_ANNOT_STAMP,
        pdfium.FPDF_ANNOT_CARET,
        pdfium.FPDF_ANNOT_INK,
        pdfium.FPDF_ANNOT_FILEATTACHMENT,
    )
)


class Annotation(NamedTuple):
    """The text of an annotation and its edges on the page.

    Attributes:
        text: Value of a form field, or text of a note.
        left: Left edge in points.
        bottom: Lower edge.
        right: Right edge.
        top: Upper edge.
        is_note: Whether it is a note about the page, and not a form field or text that is typed on the page.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    is_note: bool


def page_annotations(page: Any, form: Any, files: list[str]) -> list[Annotation]:
    """Return the visible annotations of a page that have text: fields with a value, typewriter text and notes.

    Args:
        page: The page.
        form: The form environment of the document, or None if it has no form.
        files: List to which the names of attached files are added.
    """
    out: list[Annotation] = []
    for handle, kind in _visible(page):
        box = pdfium.FS_RECTF()
        if kind == pdfium.FPDF_ANNOT_FILEATTACHMENT and (attached := pdfium.FPDFAnnot_GetFileAttachment(handle)):
            files.append(_text(partial(pdfium.FPDFAttachment_GetName, attached)) or "unnamed")
        if pdfium.FPDFAnnot_GetRect(handle, box):
            is_field = kind == pdfium.FPDF_ANNOT_WIDGET
            text = _value(handle, form) if is_field else _string(handle, b"Contents") if kind in _NOTES else ""
            if text := " ".join(text[:MAX_CHARACTERS].split()):
                low, high = sorted((box.bottom, box.top))
                is_note = not is_field and kind != pdfium.FPDF_ANNOT_FREETEXT
                out.append(Annotation(text, box.left, low, box.right, high, is_note))
    return out


def _visible(page: Any) -> Iterator[tuple[Any, int]]:
    """Yield the handle and the type of each visible annotation of a page."""
    for at in range(min(pdfium.FPDFPage_GetAnnotCount(page.raw), MAX_ANNOTATIONS)):
        handle = pdfium.FPDFPage_GetAnnot(page.raw, at)
        if handle:
            if not pdfium.FPDFAnnot_GetFlags(handle) & _HIDDEN:
                yield handle, pdfium.FPDFAnnot_GetSubtype(handle)
            pdfium.FPDFPage_CloseAnnot(handle)


def draw_stamps(page: Any, form: Any) -> bool:
    """Draw the stamps and signatures whose text is only in their appearance on a page, and return whether it has any.

    The other annotations are hidden. The page must be loaded again.
    """
    stamps = [_is_only_drawn(handle, kind, form) for handle, kind in _visible(page)]
    if not any(stamps):
        return False
    for (handle, _kind), is_stamp in zip(_visible(page), stamps, strict=True):
        if not is_stamp:
            pdfium.FPDFAnnot_SetFlags(handle, pdfium.FPDFAnnot_GetFlags(handle) | pdfium.FPDF_ANNOT_FLAG_HIDDEN)
    return bool(pdfium.FPDFPage_Flatten(page.raw, pdfium.FLAT_NORMALDISPLAY) == pdfium.FLATTEN_SUCCESS)


def _is_only_drawn(handle: Any, kind: int, form: Any) -> bool:
    if kind == pdfium.FPDF_ANNOT_WIDGET:
        is_signature = form and pdfium.FPDFAnnot_GetFormFieldType(form, handle) == pdfium.FPDF_FORMFIELD_SIGNATURE
        return bool(is_signature and pdfium.FPDFAnnot_HasKey(handle, b"AP"))
    is_stamp = kind in (pdfium.FPDF_ANNOT_STAMP, pdfium.FPDF_ANNOT_FREETEXT, pdfium.FPDF_ANNOT_WATERMARK)
    return is_stamp and pdfium.FPDFAnnot_HasKey(handle, b"AP") and not _string(handle, b"Contents").strip()


def _value(handle: Any, form: Any) -> str:
    """Return the value of a form field as it is shown, or a mark if a box is checked."""
    if form is None:
        return _string(handle, b"V")
    kind = pdfium.FPDFAnnot_GetFormFieldType(form, handle)
    if kind in _CHOICES:
        return CHECKED if pdfium.FPDFAnnot_IsChecked(form, handle) else ""
    if kind in _BUTTONS or pdfium.FPDFAnnot_GetFormFieldFlags(form, handle) & pdfium.FPDF_FORMFLAG_TEXT_PASSWORD:
        return ""
    if kind in _LISTS and (chosen := list(_chosen(handle, form))):
        return ", ".join(chosen)
    return _text(lambda buffer, size: pdfium.FPDFAnnot_GetFormFieldValue(form, handle, buffer, size))


def _chosen(handle: Any, form: Any) -> Iterator[str]:
    """Yield the chosen options of a list as they are shown, which may differ from their values."""
    for at in range(min(pdfium.FPDFAnnot_GetOptionCount(form, handle), MAX_OPTIONS)):
        if pdfium.FPDFAnnot_IsOptionSelected(form, handle, at):
            yield _text(partial(pdfium.FPDFAnnot_GetOptionLabel, form, handle, at))


def _string(handle: Any, key: bytes) -> str:
    return _text(lambda buffer, size: pdfium.FPDFAnnot_GetStringValue(handle, key, buffer, size))


def _text(read: Any) -> str:
    size = read(None, 0)
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    read(ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")


# ---- Placement -------------------------------------------------------------------------------------------------------


def with_annotations(runs: Sequence[Run], notes: Sequence[Annotation]) -> list[Run]:
    """Return the horizontal runs of a page with the text of each annotation after its label.

    The label is the nearest text to the left of a form field on the same line, or to the right of it; otherwise the
    nearest text above it. Notes are added at the end, except for notes that repeat text of the page.
    """
    after: dict[int, list[Run]] = {}
    page = " ".join("".join(run.text for run in runs).split())
    lowest = min((run.y for run in runs), default=0.0)
    body = median([run.size for run in runs] or [SIZE])
    for note in sorted(notes, key=lambda note: (-note.top, note.left)):
        if note.is_note and note.text in page:
            continue
        at = None if note.is_note else _label(runs, note)
        size = runs[at].size if at is not None else NOTE_SIZE * body
        if at is None:
            y = lowest = lowest - 2 * size
        else:
            is_beside = note.bottom - 1 <= runs[at].y + 0.3 * size <= note.top + 1
            y = runs[at].y if is_beside else (note.top + note.bottom) / 2 - 0.3 * size
        run = Run(f" {note.text}", note.left, max(note.right, note.left + 1), y, size, SPACE * size)
        after.setdefault(len(runs) if at is None else at, []).append(run)
    return list(_merged(runs, after)) if after else list(runs)


def _merged(runs: Sequence[Run], after: dict[int, list[Run]]) -> Iterator[Run]:
    for at, run in enumerate(runs):
        yield run
        yield from after.get(at, ())
    yield from after.get(len(runs), ())


def _label(runs: Sequence[Run], note: Annotation) -> int | None:
    """Return the index of the last run of the label of an annotation, or None if it has no label."""
    middle = (note.bottom + note.top) / 2
    best, least = None, float("inf")
    for at, run in enumerate(runs):
        if run.angle or not run.text.strip():
            continue
        height = run.y + 0.3 * run.size
        overlaps = run.x0 < note.right and note.left < run.x1
        if note.bottom - 1 <= height <= note.top + 1:
            distance = note.left - run.x1 if run.x1 <= note.left + run.size else run.x0 - note.right + 1_000
        elif height > middle:
            distance = height - note.top + (2_000 if overlaps else 10_000)
        else:
            continue
        if distance < least:
            best, least = at, distance
    return best
