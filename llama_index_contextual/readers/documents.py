"""Read files into LlamaIndex Documents. A file that cannot be read is reported, and reading continues."""

from __future__ import annotations

import filecmp
import json
import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from llama_index.core.schema import BaseNode, Document
from llama_index.core.utils import get_tqdm_iterable

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import default
from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.metadata import has_surrogate, json_fault, value_fault
from llama_index_contextual.readers.figures import FigureCollector, text_in, with_texts
from llama_index_contextual.readers.files import (
    IMAGE_SUFFIXES,
    MARKDOWN_SUFFIXES,
    OFFICE_SUFFIXES,
    PDF_SUFFIXES,
    FileAccount,
    FileRef,
    FileSource,
    FileWarning,
    ParsedFile,
    ReadLimits,
    SkippedFile,
    discover,
    has_text,
    notes_on_ids,
    printable,
)
from llama_index_contextual.readers.ocr import CHANGED, OcrReader, PageStore, engine_for
from llama_index_contextual.readers.pdf.scans import (
    ImagePages,
    Page,
    covered_note,
    no_text_note,
    picture_notes,
    unread_pictures_note,
    with_ocr_notes,
)
from llama_index_contextual.readers.process import ParserProcess
from llama_index_contextual.readers.text import (
    markdown_headings,
    parse_markdown,
    parse_text,
    read_front_matter,
)

if TYPE_CHECKING:
    from llama_index_contextual.readers.pdf.pages import PdfEngine

MAX_FAILED_FIGURES = 3  # a file of which more figures cannot be drawn is not tried further
MAX_PROCESSES = 8  # each process may use as much memory as `ParserProcess` allows

FileMetadata = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True)
class ReadResult:
    """Result of `read_documents`; iterating over it yields the Documents.

    Attributes:
        documents: One Document per file that was read.
        skipped: The files that were not read, with the reasons.
        warnings: Problems in files that were read.
    """

    documents: list[Document] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)

    def __repr__(self) -> str:
        parts = (len(self.documents), "document"), (len(self.skipped), "skipped file"), (len(self.warnings), "warning")
        return f"<{type(self).__name__}: {', '.join(pluralize(number, noun) for number, noun in parts)}>"

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents)

    def __len__(self) -> int:
        return len(self.documents)


class FileContent(NamedTuple):
    """Content of one file.

    Attributes:
        document: The Document.
        warnings: Problems in the file.
        digest: Hexadecimal xxh3-128 hash of the file.
        facts: Metadata returned by the user's `file_metadata`, which is also part of the Document's metadata.
        chunks: Chunks of the Document if the process that read the file also split it; otherwise None.
        pictures: The stored pictures of its figures, by their SHA-256 hash.
    """

    document: Document
    warnings: tuple[FileWarning, ...]
    digest: str
    facts: Mapping[str, Any]
    chunks: Sequence[BaseNode] | None = None
    pictures: Mapping[str, bytes] = {}


@dataclass(kw_only=True, repr=False, eq=False)
class DocumentReader:
    """Reader for files of all supported types.

    Text and Markdown files are parsed in this process, and all other files are parsed in child processes (one per
    core). Scanned pages are read by OCR. Use the reader as a context manager.

    Attributes:
        limits: Limits for each file.
        passwords: Password for all encrypted PDFs, or a mapping of paths, document ids or file names to passwords; the
            key "*" applies to all other files.
        pdf_engine: "pdfium", or "pypdf", which is pure Python.
        file_metadata: Function that takes the path of a file, as it was passed, and returns additional metadata (JSON
            values).
        ocr: OCR engine for scanned pages and images: "rapidocr" (`ocr` extra), "tesseract", "tesseract:deu+fra" with
            tesseract's language codes, or "auto" for the first engine that is installed; None for no OCR.
        page_store: Store for the text of scanned pages, so that no page is read twice, or None.
        figures: Whether to keep the figures of the files; "ocr" to read the text in pictures of PDFs as well.
        on_file: Called with the name of each file before it is read.
        on_page: Called with the number of pages of the current file that have been read, with or without OCR, and the
            total number of pages.
    """

    limits: ReadLimits = field(default_factory=ReadLimits)
    passwords: Mapping[str, str] | str | None = None
    pdf_engine: PdfEngine = default("pdf_engine")
    file_metadata: FileMetadata | None = None
    ocr: str | None = default("ocr")
    page_store: PageStore | None = None
    figures: bool | Literal["ocr"] = default("figures")
    on_file: Callable[[str], None] | None = None
    on_page: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._parsers: list[ParserProcess] = []
        self._idle: queue.SimpleQueue[ParserProcess] = queue.SimpleQueue()
        self._current: Path | None = None  # the file that `read_all` yields next
        self._ocr: OcrReader | None = None
        self._ocr_lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the child processes; a later `read` starts new processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            self._stop()  # interrupts parsing
            pool.shutdown()
        self._stop()

    def _stop(self) -> None:
        for child in (*self._parsers, self._ocr):
            if child is not None:
                child.close()

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Yield the content or the error of each file in order, while the next files are being parsed.

        Raises:
            InputError: `file_metadata` returned a value that cannot be stored.
        """
        ahead = max(1, min(os.cpu_count() or 1, MAX_PROCESSES))
        waiting: deque[tuple[FileRef, Future[ParsedFile]]] = deque()
        pool = self._pool = ThreadPoolExecutor(ahead, thread_name_prefix="parse")
        try:
            for ref in refs:
                waiting.append((ref, pool.submit(self._parse, ref)))
                if len(waiting) > ahead:
                    yield self._next(*waiting.popleft())
            while waiting:
                yield self._next(*waiting.popleft())
        finally:
            if waiting:
                self.close()
            pool.shutdown()

    def _next(self, ref: FileRef, parsed: Future[ParsedFile]) -> tuple[FileRef, FileContent | ReadError]:
        if self.on_file is not None:
            self.on_file(printable(ref.path.name))
        self._current = ref.path
        try:
            return ref, self._content(ref, parsed.result())
        except ReadError as error:
            return ref, error

    def read(self, ref: FileRef) -> FileContent:
        """Read one file.

        Raises:
            ReadError: The file cannot be read or has no text; `reason` states the cause and the remedy.
            InputError: `file_metadata` returned a value that cannot be stored.
        """
        return self._content(ref, self._parse(ref))

    def _content(self, ref: FileRef, parsed: ParsedFile) -> FileContent:
        if not has_text(parsed.text):
            raise ReadError(ref.shown, "has no text: it contains only white space and invisible characters")
        facts = user_facts(self.file_metadata, ref.name)
        warnings = tuple(FileWarning(ref.shown, text) for text in parsed.warnings)
        return FileContent(_document(ref, parsed, facts), warnings, parsed.digest, facts, pictures=parsed.pictures)

    def _parse(self, ref: FileRef) -> ParsedFile:
        suffix = ref.path.suffix.lower()
        try:
            _check(ref)
            if suffix in OFFICE_SUFFIXES:
                parsed = self._in_child(ref, reader="office", figures=bool(self.figures))
                return self._with_pictures(ref, parsed) if parsed.scanned else parsed
            if suffix in PDF_SUFFIXES:
                parsed = self._parse_pdf(ref, {})
                if parsed.scanned or parsed.covered:
                    parsed = self._with_scanned_pages(ref, parsed)
                return self._with_figures(ref, parsed)
            if suffix in IMAGE_SUFFIXES:
                return self._read_image(ref)
            parse = parse_markdown if suffix in MARKDOWN_SUFFIXES else parse_text
            return parse(FileSource.open(ref.path, self.limits))
        except ReadError as error:
            raise ReadError(ref.shown, error.reason) from error

    def _parse_pdf(self, ref: FileRef, scans: Mapping[int, Page]) -> ParsedFile:
        password = password_of(ref, self.passwords)
        return self._in_child(ref, password=password, engine=self.pdf_engine, scans=scans, figures=bool(self.figures))

    def _with_figures(self, ref: FileRef, parsed: ParsedFile) -> ParsedFile:
        """Draw the figures of a PDF, each in its own request, so that one that cannot be drawn affects no other."""
        if not parsed.map.figures:
            return parsed
        collector, password = FigureCollector(), password_of(ref, self.passwords)
        failed: list[str] = []
        with self._parser() as parser:
            for figure in parsed.map.figures:
                if len(failed) > MAX_FAILED_FIGURES or collector.is_full:
                    break
                try:
                    picture = parser.draw(
                        ref.path,
                        digest=parsed.digest,
                        limits=self.limits,
                        page=figure.page,
                        box=figure.box,
                        password=password,
                    )
                except ReadError as error:
                    failed.append(f"a figure on page {figure.page} was left out: {error.reason}")
                    continue
                if picture is not None:
                    collector.add(figure, picture)
        parsed = collector.added_to(parsed, failed[:MAX_FAILED_FIGURES])
        return self._with_texts_of_figures(ref, parsed) if self.figures == "ocr" else parsed

    def _with_texts_of_figures(self, ref: FileRef, parsed: ParsedFile) -> ParsedFile:
        """Add the text in the pictures of a PDF, or a warning if no OCR engine can be used."""
        pictures = [figure for figure in parsed.map.figures if figure.kind == "picture"]
        pages = sorted({figure.page for figure in pictures if figure.page is not None} - set(parsed.covered))
        ocr = self._ocr_reader()
        if isinstance(ocr, str) or not pages:
            notes = [unread_pictures_note(pages, str(ocr))] if pages else []
            return replace(parsed, warnings=(*parsed.warnings, *notes))
        password = password_of(ref, self.passwords)
        scans = ocr.read(ref.path, pages, password=password, digest=parsed.digest, limits=self.limits)
        with_page = ((figure, scans.pages.get(figure.page or 0)) for figure in pictures)
        read = {figure.id: text_in(figure, page) for figure, page in with_page if page is not None}
        parsed = with_texts(parsed, {number: text for number, text in read.items() if text})
        return replace(parsed, warnings=(*parsed.warnings, *scans.failed))

    def _count_page(self, path: Path, done: int, total: int) -> None:
        if self.on_page is not None and path == self._current:  # ignore files that are parsed in advance
            self.on_page(done, total)

    def _with_scanned_pages(self, ref: FileRef, parsed: ParsedFile) -> ParsedFile:
        """Add the text of the scanned pages to a PDF, or a warning about these pages if no OCR engine can be used."""
        ocr = self._ocr_reader()
        if isinstance(ocr, str):
            if not has_text(parsed.text):
                raise ReadError(ref.shown, f"has no text layer: {ocr} to have it read by OCR, and ingest it again")
            notes = [no_text_note(parsed.scanned, f" ({ocr})")] if parsed.scanned else []
            notes += [covered_note(parsed.covered, f" ({ocr})")] if parsed.covered else []
            return replace(parsed, warnings=(*notes, *parsed.warnings), covered=())
        password = password_of(ref, self.passwords)
        pages = sorted((*parsed.scanned, *parsed.covered))
        scans = ocr.read(ref.path, pages, password=password, digest=parsed.digest, limits=self.limits)
        whole = self._parse_pdf(ref, scans.pages)
        if whole.digest != parsed.digest:
            raise ReadError(ref.shown, CHANGED)
        if not has_text(whole.text):
            raise ReadError(ref.shown, scans.failed[0] if scans.failed else "has no text layer, and OCR found no text")
        return with_ocr_notes(replace(whole, covered=parsed.covered), scans)

    def _with_pictures(self, ref: FileRef, parsed: ParsedFile) -> ParsedFile:
        """Add the text of the pictures in an Office file or an email, or a warning if no OCR engine can be used."""
        ocr = self._ocr_reader()
        if isinstance(ocr, str):
            if not has_text(parsed.text):
                raise ReadError(
                    ref.shown, f"has pictures but no text: {ocr} to have them read by OCR, and ingest it again"
                )
            return replace(parsed, warnings=(unread_pictures_note(parsed.scanned, ocr), *parsed.warnings))
        numbers = parsed.scanned[: self.limits.max_pages]
        scans = ocr.read(ref.path, numbers, digest=parsed.digest, limits=self.limits)
        whole = self._in_child(ref, reader="office", scans=scans.pages, figures=bool(self.figures))
        if whole.digest != parsed.digest:
            raise ReadError(ref.shown, CHANGED)
        return replace(whole, scanned=(), warnings=(*picture_notes(scans), *whole.warnings))

    def _read_image(self, ref: FileRef) -> ParsedFile:
        """Read an image file, which may have several pages."""
        from llama_index_contextual.readers.pdf.reader import read_source

        ocr = self._ocr_reader()
        if isinstance(ocr, str):
            raise ReadError(ref.shown, f"is an image: {ocr} to have it read by OCR, and ingest it again")
        scans = ocr.read(ref.path, limits=self.limits)
        if not any(page["boxes"] for page in scans.pages.values()):
            raise ReadError(ref.shown, scans.failed[0] if scans.failed else "is an image in which OCR found no text")
        account = FileAccount(ref.path, ref.size, self.limits)
        parsed = read_source(ImagePages(scans), FileSource(ref.path, b"", account, scans.digest), [], {})
        return with_ocr_notes(parsed, scans)

    def _ocr_reader(self) -> OcrReader | str:
        """Return the OCR reader; without an OCR engine, return a message on how to install or enable one."""
        with self._ocr_lock:
            if self._ocr is None:
                engine = engine_for(self.ocr)
                if isinstance(engine, str):
                    return engine
                self._ocr = OcrReader(engine, store=self.page_store, on_page=self._count_page)
            return self._ocr

    def _in_child(self, ref: FileRef, **options: Any) -> ParsedFile:
        with self._parser() as parser:
            return parser.read(ref.path, limits=self.limits, **options)

    @contextmanager
    def _parser(self) -> Iterator[ParserProcess]:
        """Return a child process that no other thread uses."""
        try:
            parser = self._idle.get_nowait()
        except queue.Empty:
            parser = ParserProcess(on_page=self._count_page, niceness=self.limits.niceness)
            self._parsers.append(parser)
        try:
            yield parser
        finally:
            self._idle.put(parser)


def password_of(ref: FileRef, passwords: Mapping[str, str] | str | None) -> str | None:
    """Return the password of a file, or None; see `DocumentReader`."""
    if passwords is None or isinstance(passwords, str):
        return passwords
    names = (ref.doc_id, ref.name, ref.path.name, "*")
    return next((passwords[name] for name in names if name in passwords), None)


def read_documents(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    file_metadata: FileMetadata | None = None,
    limits: ReadLimits = ReadLimits(),  # noqa: B008
    passwords: Mapping[str, str] | str | None = None,
    pdf_engine: PdfEngine = default("pdf_engine"),
    ocr: str | None = default("ocr"),
    show_progress: bool = False,
) -> ReadResult:
    """Read files into Documents, and record their pages and headings in the metadata.

    Files that cannot be read, and files with the same content as another file, are listed in `skipped`.

    Args:
        inputs: Files, folders (read recursively) and globs ("contracts/**/*.pdf").
        file_metadata: Function that takes the path of a file, as it was passed, and returns additional metadata (JSON
            values).
        limits: Limits for each file.
        passwords: Password for all encrypted PDFs, or a mapping of paths, document ids or file names to passwords; the
            key "*" applies to all other files.
        pdf_engine: "pdfium", or "pypdf", which is pure Python.
        ocr: Engine for scanned pages and images, as in `DocumentReader`.
        show_progress: Whether to show a progress bar.

    Raises:
        InputError: `file_metadata` returned a value that cannot be stored.
    """
    discovery = discover(inputs, limits=limits)
    result = ReadResult(skipped=discovery.skipped, warnings=notes_on_ids(discovery.files))
    reader = DocumentReader(
        limits=limits, passwords=passwords, pdf_engine=pdf_engine, file_metadata=file_metadata, ocr=ocr
    )
    by_digest: dict[str, FileRef] = {}
    with reader:
        for ref, content in reader.read_all(get_tqdm_iterable(discovery.files, show_progress, "Reading files")):
            if isinstance(content, ReadError):
                result.skipped.append(SkippedFile(content.path, content.reason))
                continue
            first = by_digest.setdefault(content.digest, ref)
            # xxh3 is not cryptographic: compare the bytes, so that a crafted file cannot replace another file.
            if first is not ref and filecmp.cmp(first.path, ref.path, shallow=False):
                result.skipped.append(SkippedFile(ref.shown, f"has the same content as {first.shown}"))
            else:
                result.documents.append(content.document)
                result.warnings.extend(content.warnings)
    return result


def with_headings(document: Document) -> Document:
    """Add the headings of a Document from another reader to its metadata if the text is Markdown.

    Documents from Markdown, PDF and Office files may contain Markdown, because many parsers convert PDF and Office
    files to Markdown. If the file type is unknown, the text must have at least two headings.
    """
    metadata = document.metadata
    suffix = PurePath(str(metadata.get(keys.FILE_NAME) or metadata.get(keys.FILE_PATH) or "")).suffix.lower()
    is_other = suffix and suffix not in (*MARKDOWN_SUFFIXES, *PDF_SUFFIXES, *OFFICE_SUFFIXES)
    if keys.HEADINGS in metadata or is_other:
        return document
    front = read_front_matter(document.text)
    headings, _ = markdown_headings(document.text, front.end if front else 0)
    if not headings or (len(headings) == 1 and not suffix):
        return document
    structure = keys.DocumentMap(headings=headings).to_metadata()
    return document.model_copy(update={"metadata": metadata | structure})


def user_facts(file_metadata: FileMetadata | None, path: str) -> dict[str, Any]:
    """Return the metadata from the user's `file_metadata` function for a file.

    Raises:
        InputError: `file_metadata` did not return a mapping of names to JSON values, or a name is reserved for this
            package.
    """
    if file_metadata is not None and not callable(file_metadata):
        problem = f"a function from a path to a dict, got {type(file_metadata).__name__}"
        raise InputError(f"file_metadata must be {problem}: pass `lambda path: {{...}}`.", value=file_metadata)
    facts = file_metadata(path) if file_metadata is not None else None
    if facts is not None and not isinstance(facts, Mapping):
        raise InputError(f"file_metadata must return a dict, got {type(facts).__name__}.", value=facts)
    for key, value in (facts or {}).items():
        if not isinstance(key, str) or not key.strip() or has_surrogate(key):
            raise InputError(f"A key of the metadata of a file must be a non-empty string, not {key!r}.", value=key)
        if keys.is_own_key(key):
            problem = "is set by this package: choose another name"
            raise InputError(f"The key {key!r} of the metadata of a file {problem}.", value=key)
        if fault := json_fault(value) or value_fault(value):
            raise InputError(f"The value of the metadata {key!r} of a file {fault}.", value=value)
    # The manifest stores JSON, and later runs compare the metadata with it.
    return dict(json.loads(json.dumps(facts or {})))


def _check(ref: FileRef) -> None:
    """Raise `ReadError` if the file has been replaced since it was discovered, or cannot be accessed or downloaded."""
    if ref.fetch is not None and not ref.path.exists():
        ref.fetch(ref)
    try:
        status = os.stat(ref.path)
    except OSError as error:
        raise ReadError(ref.shown, f"cannot be opened: {error.strerror}") from error
    if ref.identity not in (None, (status.st_dev, status.st_ino)):
        raise ReadError(ref.shown, CHANGED)


def _document(ref: FileRef, parsed: ParsedFile, facts: Mapping[str, Any]) -> Document:
    own = {keys.FILE_NAME: ref.doc_id.rpartition("/")[2], keys.FILE_PATH: ref.doc_id, **parsed.map.to_metadata()}
    title = {keys.TITLE: parsed.title} if parsed.title else {}
    return Document(
        id_=ref.doc_id,
        text=parsed.text,
        metadata={**parsed.metadata, **own, **title, **facts},
        excluded_embed_metadata_keys=keys.excluded_embed_keys(key for key in parsed.metadata if key not in facts),
        excluded_llm_metadata_keys=keys.excluded_llm_keys(),
    )
