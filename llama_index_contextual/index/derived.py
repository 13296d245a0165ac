"""Derived data of a part, which are made from its stored chunks without calling a model.

bm25/              lexical index of the chunks
bm25/documents/    index of documents by name and opening
units.bin          sentences, table rows and other units of the chunks

The manifest records the edition of the derived data of each part, and the settings that they depend on. If they differ
from the current edition and settings, the part is searched as it is, and the next writer makes its derived data again.

To add a kind of derived data, write it in `DerivedBuilder`, read it in `Part` (from its file, or from `Part.remade` if
the part was written before there was such a file), copy it in `PartWriter.copy`, and increase `DERIVED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import LANGUAGES, ProjectConfig
from llama_index_contextual.embeddings.words import words_identity
from llama_index_contextual.index.analysis import Analyzer, tokens
from llama_index_contextual.index.bm25 import LexicalIndexBuilder
from llama_index_contextual.index.documents import document_entry
from llama_index_contextual.index.manifest import (
    BM25_DIRECTORY,
    DOCUMENTS_DIRECTORY,
    UNITS_FILE,
    DerivedEntry,
    Manifest,
    PartEntry,
)
from llama_index_contextual.index.units import UnitsBuilder

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

DERIVED = 3
"""Edition of the derived data. It must be increased when the same chunks no longer result in the same derived data."""

OLDEST_READ = 2
"""Edition of the oldest files of units that are read; older ones are made again in memory."""


def current_entry(config: ProjectConfig) -> DerivedEntry:
    """Return the manifest entry of derived data that this release makes with the given settings."""
    if not config.builds_lexical:
        return DerivedEntry(edition=DERIVED, language=None, words=words_identity())
    return DerivedEntry(edition=DERIVED, language=config.language, languages=config.languages, words=words_identity())


def is_outdated(entry: DerivedEntry, config: ProjectConfig) -> bool:
    """Return whether derived data differ from those that this release makes with the given settings.

    If WordLlama is not installed, derived data that were made with it are current.
    """
    current = current_entry(config)
    return entry != current and (bool(current.words) or entry.model_copy(update={"words": ""}) != current)


def is_derived(file: str) -> bool:
    """Return whether a file of a part contains derived data."""
    return PurePosixPath(file).parts[0] in (BM25_DIRECTORY, UNITS_FILE)


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
        has_terms: Whether there are lexical indexes.

    Attributes:
        terms: Builders of the lexical indexes, by directory.
        units: Builder of the units of the chunks.
    """

    def __init__(self, *, has_terms: bool) -> None:
        names = (BM25_DIRECTORY, DOCUMENTS_DIRECTORY) if has_terms else ()
        self.terms = {name: LexicalIndexBuilder() for name in names}
        self.units = UnitsBuilder(None)
        self._analyzers: dict[str, Analyzer] = {}

    def add(self, nodes: Sequence[BaseNode], language: str) -> None:
        """Make the derived data of a document from its chunks, at least one, in the language of its record."""
        analyzer = self._analyzer(language) if self.terms else None
        for node in nodes:
            words = self.units.add(node.get_content(), node.metadata, analyzer)
            if self.terms:
                indexed_words, lines = _indexed_words(node, words)
                others = [(line, self._analyzer(of_line)) for of_line, line in lines]
                self.terms[BM25_DIRECTORY].add_words(indexed_words, analyzer, others)
        if self.terms:
            self.terms[DOCUMENTS_DIRECTORY].add_words(tokens(document_entry(nodes)), analyzer)

    def _analyzer(self, language: str) -> Analyzer:
        if language not in self._analyzers:
            self._analyzers[language] = Analyzer(language, has_periods=True)
        return self._analyzers[language]

    def save(self, directory: Path) -> None:
        """Write the derived data to the directory of a part, without syncing."""
        for name, builder in self.terms.items():
            builder.build().save(directory / name)
        self.units.build().save(directory / UNITS_FILE)


def _indexed_words(node: BaseNode, words: Sequence[str]) -> tuple[Sequence[str], list[tuple[str, Sequence[str]]]]:
    """Return the words that are indexed for a chunk: those of its context and other metadata, and of its text.

    Args:
        node: The chunk.
        words: The words of its text.

    Returns:
        The words in the language of the document, and those of each line of the context in another language.
    """
    from llama_index.core.schema import MetadataMode

    content, text = node.get_content(metadata_mode=MetadataMode.EMBED), node.get_content()
    if not content.endswith(f"\n{text}"):
        return words if content == text else tokens(content), []
    head = content.removesuffix(text)
    lines: list[tuple[str, Sequence[str]]] = []
    for line in str(node.metadata.get(keys.CONTEXT) or "").split("\n")[1:]:
        if (match := keys.LANGUAGE_LINE.fullmatch(line)) and match[1] in LANGUAGES:
            head = head.replace(line, "", 1)
            lines.append((LANGUAGES[match[1]], tokens(match[2])))
    return [*tokens(head), *words], lines
