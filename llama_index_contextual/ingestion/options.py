"""Options of an ingestion or a sync: the keyword arguments of `Project`'s methods, and the options of one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypedDict

from llama_index_contextual._utils.keywords import Option
from llama_index_contextual.ingestion.report import ReportProgress
from llama_index_contextual.readers import ReadLimits, SkippedFile
from llama_index_contextual.readers.documents import FileMetadata


class ReadingOptions(TypedDict, total=False):
    """Options for reading files and requesting contexts, shared by `ingest`, `estimate` and `sync_folders`.

    Attributes:
        file_metadata: Function that returns additional metadata for a file path, a dict of JSON values. Without it,
            documents keep the metadata of earlier calls; `lambda path: {}` removes it.
        limits: Limits for reading one file.
        passwords: Passwords of encrypted PDFs: one for all, or one for each path, document id or file name; the key "*"
            stands for all other files. They are not stored.
        batch: Request contexts in batches, which the provider answers within 24 hours at half the price per token; its
            prompt cache may be less effective for them. If the process ends before that, the same call or any later one
            fetches the replies. If a batch expires, fails or is cancelled, its replies are kept, and the report lists
            the other contexts with the cost of a retry; they are never requested with live calls instead.
    """

    file_metadata: FileMetadata | None
    limits: ReadLimits | None
    passwords: Mapping[str, str] | str | None
    batch: Annotated[bool, Option(default=False)]


class WritingOptions(TypedDict, total=False):
    """Options of all calls that publish a version.

    Attributes:
        progress: Called with the progress of the run.
        wait: Number of seconds to wait for another process or thread that is writing to the project; then, or with 0,
            an error is raised.
    """

    progress: ReportProgress | None
    wait: Annotated[float, Option(default=0.0)]


class IngestOptions(ReadingOptions, WritingOptions, total=False):
    """Additional option for `ingest`.

    Attributes:
        ray: Address of a Ray cluster (extra `ray`), whose nodes read and split files, and embed texts unless the
            embedding model is behind an API: "auto" for the cluster of this machine, HOST:PORT, or "local" to start Ray
            on this machine for this call. Chunks, contexts and vectors are the same as in a local run. This machine
            must be a node of the cluster and have the project; all nodes need access to the files under the same paths,
            and the same version of this package.
    """

    ray: str | None


class SyncOptions(WritingOptions, total=False):
    """Options for `sync_folders` and `sync_documents`.

    Attributes:
        allow_empty: Whether all documents of a folder or source may be removed. Otherwise, an error is raised, because
            a drive that is not mounted looks like an empty folder, and a reader whose access has expired may return
            nothing.
        allow_many: Whether more than a tenth of the documents of a folder or source, and more than one, may be removed
            at once. Otherwise, an error is raised unless `remove` lists their ids, because the folder may not have been
            completely restored. The version before such a removal is kept as long as the version after it.
    """

    allow_empty: Annotated[bool, Option(default=False)]
    allow_many: Annotated[bool, Option(default=False)]


class SourceOptions(SyncOptions, total=False):
    """Additional options for `sync_documents`.

    Attributes:
        id_key: Key of the metadata that identifies a document in its source, such as "page_id"; None uses the ids of
            the Documents. Documents with the same value, such as the pages of a file, are numbered.
        batch: As in `ingest`.
    """

    id_key: str | None
    batch: Annotated[bool, Option(default=False)]


class FolderOptions(ReadingOptions, SyncOptions, total=False):
    """Additional options for `sync_folders`.

    Attributes:
        watching: Whether the caller watches the folders and calls again after every change. Small files are then read
            first, about 20 MB at a time, and larger ones left for a later call. `keep_versions` counts the version
            separately, so that it does not displace the versions of other calls.
        unreadable: Files that an earlier call could not read, from `skipped` in its report. They are not read again
            until their content changes, and are listed with the same reason.
        settle: Number of seconds to watch the files first; a file that changes during that time is probably still being
            written, and is left for a later call.
    """

    watching: Annotated[bool, Option(default=False)]
    unreadable: Annotated[Collection[SkippedFile], Option(default=())]
    settle: Annotated[float, Option(default=0.0)]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for one run.

    Attributes:
        replace: Whether to remove all documents that are not among the inputs.
        remove: Ids of documents to remove.
        only: Ids of the documents of the previous version that are processed again if settings changed, while the
            others are kept as they are; None for all.
        retry_failed: Whether to process documents again if the context of a chunk failed. With `max_cost`, this
            includes contexts that are held back; see `ChunkFailure`.
        reread: Whether to read files again even if their content has not changed.
        renew: Whether to request contexts again that were written when the rest of their segment was read differently.
        file_metadata: Function that returns additional metadata for a file; None keeps the metadata from earlier calls.
        limits: Limits for reading a file.
        passwords: Passwords of encrypted PDFs.
        max_cost: Limit in dollars, or None.
        batch: Whether to request contexts through the provider's Batch API.
        purpose: Purpose of the run, for its receipt. If it is "sync", the inputs are folders, and documents whose file
            is gone are removed.
        source: Name of the source that Documents are synchronised with, or "".
        id_key: As in `SourceOptions`.
        removable: Ids of the documents that a sync may remove; None for all.
        allow_empty: Whether a sync may remove all documents in a folder.
        allow_many: Whether a sync may remove more than a tenth of the documents in a folder.
        settle: Number of seconds for which a file must remain unchanged before a sync reads it.
        watching: Whether the caller watches the folders and syncs again, so that files can be left for a later sync.
        unreadable: Files that could not be read earlier, which are not read again until their content changes.
        wait: Number of seconds to wait for another writer of the project.
    """

    replace: bool = False
    remove: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    retry_failed: bool = False
    reread: bool = False
    renew: bool = False
    file_metadata: FileMetadata | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    passwords: Mapping[str, str] | str | None = field(default=None, repr=False)
    max_cost: float | None = None
    batch: bool = False
    purpose: Literal["ingest", "rebuild", "retry", "compare", "sync"] = "ingest"
    source: str = ""
    id_key: str | None = None
    removable: Collection[str] | None = None
    allow_empty: bool = False
    allow_many: bool = False
    settle: float = 0.0
    watching: bool = False
    unreadable: Collection[SkippedFile] = ()
    wait: float = 0.0

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], **more: Any) -> RunOptions:
        """Return the options among the keyword arguments of a call; other arguments and None are ignored.

        Args:
            keywords: Keyword arguments, as in `IngestOptions` or `FolderOptions`.
            **more: Options that are always set.
        """
        names = {option.name for option in fields(cls)}
        return cls(**{name: value for name, value in keywords.items() if name in names and value is not None}, **more)

    @property
    def is_sync(self) -> bool:
        """True if documents are synchronised with folders."""
        return self.purpose == "sync"

    @property
    def accepts_cost(self) -> bool:
        """True if contexts are requested again that may have been charged, because a limit is given."""
        return self.retry_failed and self.max_cost is not None

    def processes(self, doc_id: str) -> bool:
        """Return whether a document is processed again if settings changed."""
        return self.only is None or doc_id in self.only

    def may_remove(self, doc_id: str) -> bool:
        """Return whether a document may be removed because its file is gone."""
        return self.is_sync and (self.removable is None or doc_id in self.removable)
