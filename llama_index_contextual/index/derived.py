"""Derived data of a part, which are made from its stored chunks without calling a model.

bm25/              lexical index of the chunks
bm25/documents/    index of documents by name and opening

The manifest records the edition of the derived data of each part, and the settings that they depend on. If they differ
from the current edition and settings, the part is searched as it is, and the next writer makes its derived data again.

To add a kind of derived data, write it in `DerivedBuilder`, read it in `Part` (from its file, or from `Part.remade` if
the part was written before there was such a file), copy it in `PartWriter.copy`, and increase `DERIVED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.bm25 import LexicalIndexBuilder
from llama_index_contextual.index.documents import document_entry
from llama_index_contextual.index.manifest import BM25_DIRECTORY, DOCUMENTS_DIRECTORY, DerivedEntry, Manifest, PartEntry

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

DERIVED = 1
"""Edition of the derived data. It must be increased when the same chunks no longer result in the same derived data."""


def current_entry(config: ProjectConfig) -> DerivedEntry:
    """Return the manifest entry of derived data that this release makes with the given settings."""
    return DerivedEntry(edition=DERIVED, language=config.language if config.builds_lexical else None)


def is_derived(file: str) -> bool:
    """Return whether a file of a part contains derived data."""
    return PurePosixPath(file).parts[0] == BM25_DIRECTORY


def without_derived(entry: PartEntry) -> PartEntry:
    """Return the entry of a part without its derived data, which the next writer makes again."""
    files = {name: file for name, file in entry.files.items() if not is_derived(name)}
    return entry.model_copy(update={"files": files, "derived": entry.derived.model_copy(update={"edition": 0})})


def has_outdated_edition(manifest: Manifest) -> bool:
    """Return whether derived data of a version are of another edition than this release makes."""
    return any(entry.derived.edition != DERIVED for entry in manifest.parts)


class DerivedBuilder:
    """Builder of the derived data of a part.

    Args:
        language: Language of the lexical indexes, or None if there are no lexical indexes.

    Attributes:
        terms: Builders of the lexical indexes, by directory.
    """

    def __init__(self, language: str | None) -> None:
        self.terms: dict[str, LexicalIndexBuilder] = {}
        if language is not None:
            for name in (BM25_DIRECTORY, DOCUMENTS_DIRECTORY):
                self.terms[name] = LexicalIndexBuilder(language=language)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Make the derived data of a document from its chunks, at least one."""
        if self.terms:
            from llama_index.core.schema import MetadataMode

            texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
            self.terms[BM25_DIRECTORY].add_texts(texts)
            self.terms[DOCUMENTS_DIRECTORY].add_texts([document_entry(nodes)])

    def save(self, directory: Path) -> None:
        """Write the derived data to the directory of a part, without syncing."""
        for name, builder in self.terms.items():
            builder.build().save(directory / name)
