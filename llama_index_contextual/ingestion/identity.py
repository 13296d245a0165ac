"""Which document of the previous version each file of a call is, by its path or its content."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.records import Records
from llama_index_contextual.ingestion.report import IF_MOVED
from llama_index_contextual.ingestion.sync import (
    is_gone,
)
from llama_index_contextual.readers import (
    FileRef,
    FileWarning,
    SkippedFile,
)
from llama_index_contextual.readers.discovery import (
    has_magic,
    notes_on_ids,
    split_glob,
)


class FormerFiles:
    """Files from which documents were read earlier.

    Args:
        paths: Files and folders of the call.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        real_paths = [os.path.realpath(_fixed_part(Path(path))) for path in paths if "\0" not in os.fspath(path)]
        self._folders = tuple(os.path.join(path, "") for path in real_paths if os.path.isdir(path))
        self._around = (*self._folders, *(os.path.join(os.path.dirname(path), "") for path in real_paths))

    def is_deleted(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to no longer exist."""
        return record.path is not None and is_gone(record.path)

    def exists(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document still exists in, or next to, one of the paths of the call.

        A file anywhere else may be the copy that was left behind.
        """
        return record.path is not None and record.path.startswith(self._around) and not is_gone(record.path)

    def gone(self, records: Iterable[DocumentRecord]) -> dict[str, str]:
        """Return the path, by document id, of each file that was below a folder of the call and no longer exists."""
        below = ((record.doc_id, record.path) for record in records if (record.path or "").startswith(self._folders))
        return {doc_id: path for doc_id, path in below if path is not None and is_gone(path)}


def _fixed_part(path: Path) -> Path:
    is_glob = any(map(has_magic, path.parts)) and not os.path.lexists(path)
    return split_glob(path)[0] if is_glob else path


@dataclass
class Identities:
    """Documents that the files of a call were identified as.

    Attributes:
        ids: Document id of each file that is ingested.
        new: Ids of new documents, including those whose id belonged to another file that `replace` removes.
        renamed: Former id -> new id, of documents whose file has a new name or location.
        moved: Ids of documents whose file has a new location, and which keep their id.
        copies: Files that are not ingested because a document of the project has the same content.
        notes: Warnings about ids that are longer than usual.
    """

    ids: dict[FileRef, str] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    copies: list[SkippedFile] = field(default_factory=list)
    notes: list[FileWarning] = field(default_factory=list)


def identify(
    digests: Mapping[FileRef, str],
    records: Sequence[DocumentRecord],
    former: FormerFiles,
    *,
    replaces: bool = False,
    moved: bool = False,
    removed: Collection[str] = (),
    takes_new_case: bool = False,
) -> Identities:
    """Identify the document of each file.

    - A file at the location of a document's file is that document and keeps its id, regardless of how the call spells
      its path.
    - A file elsewhere with the content of a document is that document if its former file is known to no longer exist
      (or is removed by `replace`, or `moved` is set): it gets the id of its new name. If the former file may still
      exist, the file is the same document if it would have the same id, and a copy otherwise.
    - Every other file is a new document. If its id belongs to another document, it gets the shortest longer path that
      is unique.

    Therefore a file never overwrites a document that was read from elsewhere, or a document without a path, which
    was passed as a LlamaIndex Document or as nodes.

    Args:
        digests: Content hash of each file.
        records: Documents of the previous version.
        former: Former files of these documents.
        replaces: Documents that are not among the files are removed, and their ids become free.
        moved: The files have a new location: a file whose path ends with the id of a document is that document, unless
            the document's own file still exists there or nearby.
        removed: Ids of documents that are removed unless a file is identified as them; their ids become free.
        takes_new_case: A file whose name is now spelled differently in a file system that ignores case gets the id of
            the new spelling.
    """
    identification = _Identification(
        digests, records, former, replaces=replaces, moved=moved, removed=removed, takes_new_case=takes_new_case
    )
    for step in (identification.by_location, identification.by_content, identification.by_id):
        for ref in digests:
            if not identification.is_settled(ref):
                step(ref)
    identification.assign_ids()
    return identification.result


class _Identification:
    """Files identified so far, and the documents that are still free because no file was identified as them."""

    def __init__(
        self,
        digests: Mapping[FileRef, str],
        records: Sequence[DocumentRecord],
        former: FormerFiles,
        *,
        replaces: bool,
        moved: bool,
        removed: Collection[str],
        takes_new_case: bool,
    ) -> None:
        self.result = Identities()
        self._digests, self._former = digests, former
        self._replaces, self._moved = replaces, moved
        self._removed, self._takes_new_case = frozenset(removed), takes_new_case
        self._records = Records.of(records)
        self._identified: set[str] = set()  # ids of documents that are no longer free
        self._earlier: dict[FileRef, DocumentRecord] = {}
        self._copies: set[FileRef] = set()

    def is_settled(self, ref: FileRef) -> bool:
        """Return whether a file is already identified."""
        return ref in self.result.ids or ref in self._earlier or ref in self._copies

    def by_location(self, ref: FileRef) -> None:
        """Identify a file at the location of a document's file."""
        record = self._records.with_path(os.path.realpath(ref.path))
        if record is not None and self._is_free(record.doc_id):
            self._settle(ref, record)
        elif (record := self._in_another_case(ref)) is not None and self._is_free(record.doc_id):
            if self._takes_new_case:
                self._replace(ref, record)
            else:
                self._settle(ref, record)

    def _in_another_case(self, ref: FileRef) -> DocumentRecord | None:
        """Return the document of a file whose path is spelled differently, if the file system does not distinguish."""
        for doc_id in ref.ids():
            for record in self._records.with_folded_id(doc_id):
                path = record.path
                if path is not None and os.path.exists(path) and os.path.samefile(path, ref.path):
                    return record
        return None

    def by_content(self, ref: FileRef) -> None:
        """Identify a file with the content of a document."""
        same = self._records.with_content(self._digests[ref])
        equal = [record for record in same if record.path is not None and self._is_free(record.doc_id)]
        ids = set(ref.ids())
        equal.sort(key=lambda record: record.doc_id not in ids)
        earlier = next((record for record in equal if self._is_replaceable(record)), None)
        if earlier is not None:
            self._replace(ref, earlier)
        elif equal and equal[0].doc_id in ids:
            self._settle(ref, equal[0])
        elif equal:
            self._copies.add(ref)
            reason = f"has the same content as the document {equal[0].doc_id!r}"
            self.result.copies.append(SkippedFile(ref.shown, reason))

    def _is_replaceable(self, record: DocumentRecord) -> bool:
        if record.doc_id in self._removed:
            return True
        if self._moved and not self._replaces:
            return not self._former.exists(record)
        return self._replaces or self._former.is_deleted(record)

    def by_id(self, ref: FileRef) -> None:
        """Identify a moved file with the id of a document; the longest id takes precedence."""
        for doc_id in reversed(list(ref.ids())) if self._moved else ():
            record = self._records.get(doc_id) if self._is_free(doc_id) else None
            if record is not None and not self._former.exists(record):
                self._settle(ref, record)
                self.result.moved.add(doc_id)
                return

    def _settle(self, ref: FileRef, record: DocumentRecord) -> None:
        self.result.ids[ref] = record.doc_id
        self._identified.add(record.doc_id)

    def _replace(self, ref: FileRef, earlier: DocumentRecord) -> None:
        self._earlier[ref] = earlier
        self._identified.add(earlier.doc_id)

    def _is_free(self, doc_id: str) -> bool:
        """Return whether there is a document with this id that no file was identified as."""
        return doc_id not in self._identified and self._records.get(doc_id) is not None

    def _is_kept(self, doc_id: str) -> bool:
        """Return whether a document with this id is kept although no file was identified as it."""
        return doc_id not in self._removed and self._is_free(doc_id)

    def assign_ids(self) -> None:
        """Assign an unused id to each of the other files."""
        is_used = (lambda doc_id: False) if self._replaces else self._is_kept
        used = _UsedIds(self.result.ids.values(), is_used)
        named: list[FileRef] = []
        for ref in self._digests:
            if ref in self.result.ids or ref in self._copies:
                continue
            doc_id = ref.free_id(used)
            used.add(doc_id)
            self.result.ids[ref] = doc_id
            named.append(replace(ref, doc_id=doc_id))
            earlier = self._earlier.get(ref)
            if earlier is not None and earlier.doc_id == doc_id:
                self.result.moved.add(doc_id)
                continue
            self.result.new.add(doc_id)
            if earlier is not None:
                self.result.renamed[earlier.doc_id] = doc_id
        has_owner = any(self._is_free(ref.shortest_id) for ref in named)
        self.result.notes = notes_on_ids(named, hint=IF_MOVED if has_owner and not self._moved else "")


class _UsedIds(set[str]):
    """Ids of files, and those of documents.

    Args:
        ids: The ids of files.
        is_used: Returns whether a document has an id.
    """

    def __init__(self, ids: Iterable[str], is_used: Callable[[str], bool]) -> None:
        super().__init__(ids)
        self._is_used = is_used

    def __contains__(self, doc_id: object) -> bool:
        return super().__contains__(doc_id) or self._is_used(str(doc_id))
