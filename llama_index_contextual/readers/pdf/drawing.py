"""Draw parts of the pages of a PDF as pictures, in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pypdfium2

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.figures import DPI, StoredPicture, encoded_picture
from llama_index_contextual.readers.files import FileSource, ReadLimits

MAX_PAGE_PIXELS = 20_000_000
"""Maximum number of pixels of a page of which a part is drawn; larger pages are drawn at a lower resolution."""


class FigureDrawer:
    """Draws figures; the file of the last request stays open."""

    def __init__(self) -> None:
        self._pdf: pypdfium2.PdfDocument | None = None
        self._digest = ""

    def draw(self, request: Mapping[str, Any]) -> StoredPicture | None:
        """Draw the `box` of a `page` of the file with this `path` and `digest`; None if there is nothing to see.

        Raises:
            ReadError: The file has changed, or the page cannot be drawn.
        """
        try:
            pdf = self._open(request)
            page = pdf[request["page"] - 1]
            width, height = page.get_size()
            left, top, right, bottom = request["box"]
            crop = tuple(max(0.0, edge) for edge in (left, height - bottom, width - right, top))
            scale = min(DPI / 72, (MAX_PAGE_PIXELS / max(width * height, 1.0)) ** 0.5)
            bitmap = page.render(scale=scale, crop=crop)
            picture = encoded_picture(bitmap.to_pil())
            bitmap.close()
            page.close()
        except (pypdfium2.PdfiumError, ValueError, OSError) as error:
            raise ReadError(request["path"], f"pdfium cannot draw it ({error})") from error
        return picture

    def _open(self, request: Mapping[str, Any]) -> pypdfium2.PdfDocument:
        if self._pdf is None or self._digest != request["digest"]:
            self._close()
            path = Path(request["path"])
            source = FileSource.open(path, ReadLimits(max_bytes=request["max_bytes"]))
            if source.digest != request["digest"]:
                raise ReadError(str(path), "has changed while it was read")
            self._pdf, self._digest = pypdfium2.PdfDocument(source.data, password=request["password"]), source.digest
            if self._pdf.get_formtype() != pypdfium2.raw.FORMTYPE_NONE:
                self._pdf.init_forms()
        return self._pdf

    def _close(self) -> None:
        pdf, self._pdf = self._pdf, None
        if pdf is not None:
            pdf.close()
