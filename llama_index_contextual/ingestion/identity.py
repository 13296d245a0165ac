"""Which document a file is: one that the project has, by its place or its content, or a new one with its own id.

A record keeps no path but the SHA-256 of one, its origin. So whether the former file of a document is still there can
only be told where the ids of documents, taken as paths below a folder that was given or the folder above it, lead to
that origin.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_index_contextual.readers import FileRef, FileWarning, SkippedFile
from llama_index_contextual.readers.inputs import notes_on_ids
from llama_index_contextual.readers.walk import has_magic, split_glob
from llama_index_contextual.storage.manifest import DocumentRecord

IF_MOVED = "; if that one was moved here, say so: `moved=True`, on the command line --moved"


def origin(path: Path) -> str:
    """Return by what a file is known again without its path being kept; all ways of naming it give the same."""
    return _origin_of(os.path.realpath(path))


def _origin_of(real_path: str) -> str:
    return hashlib.sha256(os.fsencode(real_path)).hexdigest()


class FormerFiles:
    """The files that documents once came from, as far as the folders of this call lead to them.

    Args:
        paths: The files and folders of the call.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        given = [os.path.realpath(_fixed_part(Path(path))) for path in paths if "\0" not in os.fspath(path)]
        self._given = [path for path in given if os.path.isdir(path)]
        self._around = list(dict.fromkeys([*self._given, *map(os.path.dirname, given)]))

    def path(self, record: DocumentRecord) -> str | None:
        """Return the path that the file of a document had, or None where it is not known."""
        return next(_places(record, self._around), None)

    def is_gone(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to be gone."""
        path = self.path(record)
        return path is not None and not os.path.lexists(path)

    def is_there(self, record: DocumentRecord) -> bool:
        """Return whether the file of a document is known to be there still."""
        path = self.path(record)
        return path is not None and os.path.lexists(path)

    def missing(self, records: Sequence[DocumentRecord]) -> list[str]:
        """Return the ids of documents whose file was in a folder of the call, and is gone."""
        paths = ((record.doc_id, next(_places(record, self._given), None)) for record in records)
        return [doc_id for doc_id, path in paths if path is not None and not os.path.lexists(path)]


def _places(record: DocumentRecord, folders: Iterable[str]) -> Iterator[str]:
    names = record.doc_id.split("/")
    for folder in folders if record.origin is not None else ():
        for at in range(len(names)):
            path = os.path.join(folder, *names[at:])
            if _origin_of(path) == record.origin:
                yield path


def _fixed_part(path: Path) -> Path:
    is_glob = any(map(has_magic, path.parts)) and not os.path.lexists(path)
    return split_glob(path)[0] if is_glob else path


@dataclass
class Identities:
    """What document each file of a call is.

    Attributes:
        ids: Document id of each file that is taken.
        new: Ids of documents that the project does not have, or has from another file that `replace` takes out.
        renamed: Former id -> new id, of documents whose file has another name or place now.
        moved: Ids of documents whose file has another place now, and which keep their id.
        copies: Files that are not taken because a document of the project has their content.
        notes: What is said about ids that are longer than usual.
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
) -> Identities:
    """Return which document each file is.

    A file that lies where a document's file lay is that document and keeps its id, however it is named in the call. A
    file elsewhere with a document's content is that document if its former file is known to be gone (or is taken out by
    `replace`, or `moved` is said): it takes the id of its new name. If its former file may be there still, the file is
    the same document where it would have the same id, and a copy otherwise. Every other file is a new document; where
    its id belongs to another document, it gets the shortest longer path that differs. So no file ever overwrites a
    document that came from elsewhere, or that came as a LlamaIndex Document or as nodes and so has no origin.

    Args:
        digests: Content hash of each file.
        records: The documents of the version before.
        former: Where the files of these documents were.
        replaces: Documents that are not among the files are taken out, and their ids are free.
        moved: Files have a new place: a file whose path ends with the id of a document is that document, unless the
            document's own file is known to be there still.
    """
    task = _Identification(digests, records, former, replaces=replaces, moved=moved)
    for step in (task.by_place, task.by_content, task.by_id):
        for ref in digests:
            if not task.is_settled(ref):
                step(ref)
    task.name()
    return task.found


class _Identification:
    """What is settled so far, and the documents whose file is not settled: they are free."""

    def __init__(
        self,
        digests: Mapping[FileRef, str],
        records: Sequence[DocumentRecord],
        former: FormerFiles,
        *,
        replaces: bool,
        moved: bool,
    ) -> None:
        self.found = Identities()
        self._digests, self._former = digests, former
        self._replaces, self._moved = replaces, moved
        self._free = {record.doc_id: record for record in records}
        self._by_origin = {record.origin: record for record in records if record.origin is not None}
        self._by_content: dict[str, list[DocumentRecord]] = defaultdict(list)
        self._by_folded_id: dict[str, list[DocumentRecord]] = defaultdict(list)
        for record in self._by_origin.values():
            self._by_content[record.content_hash].append(record)
            self._by_folded_id[record.doc_id.casefold()].append(record)
        self._earlier: dict[FileRef, DocumentRecord] = {}
        self._copies: set[FileRef] = set()

    def is_settled(self, ref: FileRef) -> bool:
        """Return whether it is known which document a file is."""
        return ref in self.found.ids or ref in self._earlier or ref in self._copies

    def by_place(self, ref: FileRef) -> None:
        """Settle a file that lies where a document's file lay."""
        record = self._by_origin.get(origin(ref.path)) or self._in_another_case(ref)
        if record is not None and record.doc_id in self._free:
            self._take(ref, record)

    def _in_another_case(self, ref: FileRef) -> DocumentRecord | None:
        """Return the document of a file that was named with other capitals, where the file system ignores them."""
        for doc_id in ref.ids():
            for record in self._by_folded_id.get(doc_id.casefold(), ()):
                path = self._former.path(record)
                if path is not None and os.path.exists(path) and os.path.samefile(path, ref.path):
                    return record
        return None

    def by_content(self, ref: FileRef) -> None:
        """Settle a file that has the content of a document."""
        equal = [record for record in self._by_content.get(self._digests[ref], ()) if record.doc_id in self._free]
        ids = set(ref.ids())
        equal.sort(key=lambda record: record.doc_id not in ids)
        earlier = next((record for record in equal if self._gave_way(record)), None)
        if earlier is not None:
            self._earlier[ref] = self._free.pop(earlier.doc_id)
        elif equal and equal[0].doc_id in ids:
            self._take(ref, equal[0])
        elif equal:
            self._copies.add(ref)
            reason = f"has the same content as the document {equal[0].doc_id!r}"
            self.found.copies.append(SkippedFile(ref.shown, reason))

    def _gave_way(self, record: DocumentRecord) -> bool:
        if self._moved and not self._replaces:
            return not self._former.is_there(record)
        return self._replaces or self._former.is_gone(record)

    def by_id(self, ref: FileRef) -> None:
        """Settle a file that has the id of a document, if files were moved; the longest id says most."""
        for doc_id in reversed(list(ref.ids())) if self._moved else ():
            record = self._free.get(doc_id)
            if record is not None and not self._former.is_there(record):
                self._take(ref, record)
                self.found.moved.add(doc_id)
                return

    def _take(self, ref: FileRef, record: DocumentRecord) -> None:
        self.found.ids[ref] = self._free.pop(record.doc_id).doc_id

    def name(self) -> None:
        """Give all other files an id that no other document has."""
        taken = {*self.found.ids.values(), *(() if self._replaces else self._free)}
        named: list[FileRef] = []
        for ref in self._digests:
            if ref in self.found.ids or ref in self._copies:
                continue
            doc_id = ref.free_id(taken)
            taken.add(doc_id)
            self.found.ids[ref] = doc_id
            named.append(replace(ref, doc_id=doc_id))
            earlier = self._earlier.get(ref)
            if earlier is not None and earlier.doc_id == doc_id:
                self.found.moved.add(doc_id)
                continue
            self.found.new.add(doc_id)
            if earlier is not None:
                self.found.renamed[earlier.doc_id] = doc_id
        is_held = any(ref.shortest_id in self._free for ref in named)
        self.found.notes = notes_on_ids(named, hint=IF_MOVED if is_held and not self._moved else "")
