"""Read files into LlamaIndex Documents. A file that cannot be read is reported and does not stop the others."""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from llama_index.core.schema import Document
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual.errors import ReadError
from llama_index_contextual.metadata import (
    FILE_NAME,
    FILE_PATH,
    HEADINGS,
    TITLE,
    DocumentMap,
    excluded_embed_keys,
    excluded_llm_keys,
)
from llama_index_contextual.readers.base import FileWarning, ParsedFile, ReadLimits, SkippedFile, has_text, user_facts
from llama_index_contextual.readers.discovery import (
    MARKDOWN_SUFFIXES,
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    FileRef,
    content_hash,
    discover,
    missing_extra,
    notes_on_ids,
    size_reason,
    special_reason,
)
from llama_index_contextual.readers.markdown import markdown_headings, read_front_matter, read_markdown
from llama_index_contextual.readers.text import read_text

if TYPE_CHECKING:
    from llama_index_contextual.readers.pdf.reader import PdfEngine, PdfWorker

FileMetadata = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True)
class ReadResult:
    """Result of `read_documents`; iterating over it yields the Documents.

    Attributes:
        documents: One Document per file that was read.
        skipped: The files that were not read, with the reason.
        warnings: Problems in files that were read.
    """

    documents: list[Document] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents)

    def __len__(self) -> int:
        return len(self.documents)


class FileContent(NamedTuple):
    """Content of one file.

    Attributes:
        document: The Document.
        warnings: Problems in the file.
        digest: xxh3-128 of the bytes that the Document was made from, in hexadecimal.
        facts: Metadata from the user's `file_metadata`; part of the Document's metadata.
    """

    document: Document
    warnings: tuple[FileWarning, ...]
    digest: str
    facts: Mapping[str, Any]


class DocumentReader:
    """Reader of single files that uses one child process for all but text and Markdown. Use it as a context manager.

    Args:
        limits: Limits of each file.
        passwords: Password of encrypted PDFs: one for all, or one per document id or file name.
        pdf_engine: "pypdf", or "pdfium" (needs `pip install llama-index-contextual[pdfium]`).
        file_metadata: Function that returns further metadata of a file, called with its path as it was passed; JSON
            scalars only.
    """

    def __init__(
        self,
        *,
        limits: ReadLimits = ReadLimits(),  # noqa: B008
        passwords: Mapping[str, str] | str | None = None,
        pdf_engine: PdfEngine = "pypdf",
        file_metadata: FileMetadata | None = None,
    ) -> None:
        self._limits = limits
        self._passwords = passwords
        self._pdf_engine = pdf_engine
        self._file_metadata = file_metadata
        self._pdf_worker: PdfWorker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child process; a later `read` starts a new one."""
        worker, self._pdf_worker = self._pdf_worker, None
        if worker is not None:
            worker.close()

    def read(self, ref: FileRef) -> FileContent:
        """Read one file.

        Raises:
            ReadError: The file cannot be read or has no text; `reason` says why and what to do.
            InputError: `file_metadata` returned something that cannot be stored.
        """
        try:
            _check(ref, self._limits)
            parsed = self._parse(ref)
        except ReadError as error:
            raise ReadError(ref.shown, error.reason) from error
        if not has_text(parsed.text):
            raise ReadError(ref.shown, "has no text: it contains only white space and invisible characters")
        facts = user_facts(self._file_metadata, ref.path)
        warnings = tuple(FileWarning(ref.shown, text) for text in parsed.warnings)
        return FileContent(_document(ref, parsed, facts), warnings, parsed.digest, facts)

    def _parse(self, ref: FileRef) -> ParsedFile:
        suffix = ref.path.suffix.lower()
        if suffix in PDF_SUFFIXES:
            return self._worker().read(
                ref.path, password=self._password(ref), limits=self._limits, engine=self._pdf_engine
            )
        if suffix in OFFICE_SUFFIXES:
            if reason := missing_extra(suffix):
                raise ReadError(ref.shown, reason)
            return self._worker().run("office", ref.path, limits=self._limits)
        read = read_markdown if suffix in MARKDOWN_SUFFIXES else read_text
        return read(ref.path, limits=self._limits)

    def _worker(self) -> PdfWorker:
        from llama_index_contextual.readers.pdf.reader import PdfWorker

        if self._pdf_worker is None:
            self._pdf_worker = PdfWorker()
        return self._pdf_worker

    def _password(self, ref: FileRef) -> str | None:
        if self._passwords is None or isinstance(self._passwords, str):
            return self._passwords
        names = (ref.doc_id, ref.path.name, str(ref.path))
        return next((self._passwords[name] for name in names if name in self._passwords), None)


def read_documents(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    file_metadata: FileMetadata | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008
    passwords: Mapping[str, str] | str | None = None,
    pdf_engine: PdfEngine = "pypdf",
    show_progress: bool = False,
) -> ReadResult:
    """Read files, folders and globs into Documents that know their pages and headings.

    Files that cannot be read, and files with the same content as another one, are listed in `skipped`.

    Args:
        inputs: Files, folders (read recursively) and globs ("contracts/**/*.pdf").
        file_metadata: Function that returns further metadata of a file, called with its path as it was passed; JSON
            scalars only.
        limits: Limits of each file.
        passwords: Password of encrypted PDFs: one for all, or one per document id or file name.
        pdf_engine: "pypdf" or "pdfium".
        show_progress: Show a progress bar.

    Raises:
        InputError: `file_metadata` returned something that cannot be stored.
    """
    discovery = discover(inputs, limits=limits)
    result = ReadResult(skipped=list(discovery.skipped), warnings=notes_on_ids(discovery.files))
    duplicates = _Duplicates(discovery.files)
    with DocumentReader(
        limits=limits, passwords=passwords, pdf_engine=pdf_engine, file_metadata=file_metadata
    ) as reader:
        for ref in get_tqdm_iterable(discovery.files, show_progress, "Reading files"):
            try:
                if first := duplicates.of(ref):
                    result.skipped.append(SkippedFile(ref.shown, f"has the same content as {first.shown}"))
                    continue
                content = reader.read(ref)
            except ReadError as error:
                result.skipped.append(SkippedFile(error.path, error.reason))
                continue
            duplicates.add(ref, content.digest)
            result.documents.append(content.document)
            result.warnings.extend(content.warnings)
    return result


def with_headings(document: Document) -> Document:
    """Return a Document of another reader with the headings of its Markdown text, if it has any, in its metadata.

    A text is Markdown if its file is, or if it has headings and comes from a file that a parser turned into Markdown,
    such as a PDF. In a text without a file name, a single line with # may be anything.
    """
    if HEADINGS in document.metadata:
        return document
    suffix = PurePath(str(document.metadata.get(FILE_NAME) or document.metadata.get(FILE_PATH) or "")).suffix.lower()
    if suffix and suffix not in (*MARKDOWN_SUFFIXES, *PDF_SUFFIXES, *OFFICE_SUFFIXES):
        return document
    front = read_front_matter(document.text)
    headings, _ = markdown_headings(document.text, front.end if front else 0)
    if not headings or (len(headings) == 1 and not suffix):
        return document
    found = DocumentMap(headings=headings).to_metadata()
    return document.model_copy(update={"metadata": {**document.metadata, **found}})


class _Duplicates:
    """Search for files with equal content; only files of equal size are hashed."""

    def __init__(self, files: Sequence[FileRef]) -> None:
        sizes: dict[int, int] = defaultdict(int)
        for ref in files:
            sizes[ref.size] += 1
        self._shared_sizes = {size for size, count in sizes.items() if count > 1}
        self._by_hash: dict[str, FileRef] = {}

    def of(self, ref: FileRef) -> FileRef | None:
        """Return an earlier file with the same bytes, or None."""
        if ref.size not in self._shared_sizes:
            return None
        first = self._by_hash.get(content_hash(ref.path))
        # xxh3 is not cryptographic: compare the bytes, so that a crafted file cannot hide another one.
        return first if first and filecmp.cmp(first.path, ref.path, shallow=False) else None

    def add(self, ref: FileRef, digest: str) -> None:
        self._by_hash.setdefault(digest, ref)


def _check(ref: FileRef, limits: ReadLimits) -> None:
    """Check that the file has not been replaced since it was discovered."""
    try:
        status = os.stat(ref.path)
    except OSError as error:
        raise ReadError(ref.shown, f"cannot be opened: {error.strerror}") from error
    if reason := special_reason(status.st_mode) or size_reason(status.st_size, limits):
        raise ReadError(ref.shown, reason)
    if ref.identity not in (None, (status.st_dev, status.st_ino)):
        raise ReadError(ref.shown, "was replaced by another file in the meantime: run again")


def _document(ref: FileRef, parsed: ParsedFile, facts: Mapping[str, Any]) -> Document:
    own = {FILE_NAME: ref.doc_id.rpartition("/")[2], FILE_PATH: ref.doc_id, **parsed.map.to_metadata()}
    title = {TITLE: parsed.title} if parsed.title else {}
    return Document(
        id_=ref.doc_id,
        text=parsed.text,
        metadata={**parsed.metadata, **own, **title, **facts},
        excluded_embed_metadata_keys=excluded_embed_keys(key for key in parsed.metadata if key not in facts),
        excluded_llm_metadata_keys=excluded_llm_keys(),
    )
