"""Random changes of a folder, and the state of a project that is compared with one fresh ingest of it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_contextual.project.project import Project

WORDS = (
    *(
        "pump",
        "valve",
        "tariff",
        "lease",
        "quarter",
        "revenue",
        "fund",
        "court",
        "notice",
        "tenant",
        "engine",
        "filter",
    ),
    *("bearing", "iron", "copper", "duty", "margin", "audit", "clause", "harbour", "vessel", "freight", "insurance"),
    *("premium", "turbine", "boiler", "sensor", "alarm", "signal", "threshold"),
)
NAMES = ("report", "Report", "notes", "über", "u\u0308ber", "合同", "a b", "q&a", "x.y", "naïve", "РЕЗЮМЕ", "minutes")
FOLDERS = ("", "", "2023", "2024", "2024/q1", "合同", "Q&A", "deep/er/still")
QUERIES = ("pump valve", "Number 17", "the audit of the tariff clause")
IGNORED = (".hidden.md", "~$report.docx", "report.md.part", "film.crdownload", ".report.md.swp", "cache.tmp")


@dataclass
class RandomChanges:
    """Makes random changes in a folder.

    Args:
        folder: The folder, which exists.
        seed: Seed of the random numbers.

    Attributes:
        log: What was changed, for the message of a failed test.
    """

    folder: Path
    seed: int
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._partial: dict[Path, str] = {}
        self._number = 0

    def change(self) -> None:
        """Make one change."""
        steps: list[tuple[int, Callable[[], str | None]]] = [
            *((5, self._create), (4, self._edit), (4, self._move), (3, self._delete), (2, self._write_part)),
            *((1, self._copy), (1, self._swap), (1, self._move_folder), (1, self._delete_folder)),
            *((1, self._replace_by_folder), (1, self._ignored), (1, self._touch), (1, self._save_by_renaming)),
        ]
        weights = [weight for weight, _ in steps]
        while True:
            done = self._random.choices([step for _, step in steps], weights)[0]()
            if done is not None:
                self.log.append(done)
                return

    def finish(self) -> None:
        """Complete the files that were only written in part."""
        for path, text in self._partial.items():
            if path.is_file():
                path.write_text(text, encoding="utf-8")
        self._partial.clear()

    def files(self) -> list[Path]:
        """Return the documents in the folder."""
        return sorted(
            path
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix in (".md", ".txt") and not path.name.startswith(".")
        )

    def _text(self) -> str:
        self._number += 1
        draw = self._random
        sections = [
            f"## Section {n}\n\n{' '.join(draw.choices(WORDS, k=draw.randint(5, 60)))}."
            for n in range(draw.randint(0, 4))
        ]
        return "\n\n".join([f"# Document {self.seed}-{self._number}", f"Number {self._number} is here.", *sections, ""])

    def _free_path(self) -> Path:
        while True:
            folder = self.folder / self._random.choice(FOLDERS)
            name = self._random.choice(NAMES) + self._random.choice(("", "", f" {self._random.randint(1, 30)}"))
            path = folder / f"{name}{self._random.choice(('.md', '.md', '.txt'))}"
            blocked = any(parent.is_file() for parent in path.parents)
            if not os.path.lexists(path) and not blocked:
                path.parent.mkdir(parents=True, exist_ok=True)
                return path

    def _any(self) -> Path | None:
        files = self.files()
        return self._random.choice(files) if files else None

    def _create(self) -> str:
        path = self._free_path()
        path.write_text(self._text(), encoding="utf-8")
        return f"create {path}"

    def _edit(self) -> str | None:
        if (path := self._any()) is None:
            return None
        self._partial.pop(path, None)
        path.write_text(self._text(), encoding="utf-8")
        return f"edit {path}"

    def _touch(self) -> str | None:
        if (path := self._any()) is None:
            return None
        path.touch()
        return f"touch {path}"

    def _save_by_renaming(self) -> str | None:
        if (path := self._any()) is None:
            return None
        self._partial.pop(path, None)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(self._text(), encoding="utf-8")
        temporary.replace(path)
        return f"save {path}"

    def _move(self) -> str | None:
        if (path := self._any()) is None:
            return None
        target = self._free_path()
        path.rename(target)
        if path in self._partial:
            self._partial[target] = self._partial.pop(path)
        return f"move {path} to {target}"

    def _swap(self) -> str | None:
        files = self.files()
        if len(files) < 2:
            return None
        one, other = self._random.sample(files, 2)
        self.finish()
        middle = one.with_name(f".{one.name}.swap")
        one.rename(middle)
        other.rename(one)
        middle.rename(other)
        return f"swap {one} and {other}"

    def _copy(self) -> str | None:
        if (path := self._any()) is None:
            return None
        target = self._free_path()
        shutil.copy2(path, target)
        if path in self._partial:
            self._partial[target] = self._partial[path]
        return f"copy {path} to {target}"

    def _delete(self) -> str | None:
        files = self.files()
        if len(files) < 4:
            return None
        path = self._random.choice(files)
        path.unlink()
        self._partial.pop(path, None)
        return f"delete {path}"

    def _delete_folder(self) -> str | None:
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir())
        if not folders or len(self.files()) < 8:
            return None
        path = self._random.choice(folders)
        if len([file for file in self.files() if path not in file.parents]) < 2:
            return None
        shutil.rmtree(path)
        return f"delete folder {path}"

    def _move_folder(self) -> str | None:
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir())
        if not folders:
            return None
        self.finish()
        path = self._random.choice(folders)
        target = self.folder / f"folder {self._random.randint(1, 99)}"
        if os.path.lexists(target):
            return None
        path.rename(target)
        return f"move folder {path} to {target}"

    def _replace_by_folder(self) -> str | None:
        if (path := self._any()) is None:
            return None
        self._partial.pop(path, None)
        path.unlink()
        path.mkdir()
        (path / "inside.md").write_text(self._text(), encoding="utf-8")
        return f"replace {path} by a folder"

    def _ignored(self) -> str:
        path = self.folder / self._random.choice(IGNORED)
        path.write_text(self._text(), encoding="utf-8")
        return f"ignored {path}"

    def _write_part(self) -> str:
        path, text = self._free_path(), self._text()
        path.write_text(text[: len(text) // 2], encoding="utf-8")
        self._partial[path] = text
        return f"write half of {path}"


@dataclass(frozen=True)
class DocumentState:
    """What a document consists of, and how its chunks are found."""

    text: str
    chunks: tuple[str, ...]


def state_of(project: Project) -> dict[str, DocumentState]:
    """Return the text and the chunks with their contexts, by document id."""
    return {
        record.doc_id: DocumentState(
            project.read(record.doc_id),
            tuple(node.get_content(MetadataMode.EMBED) for node in project.chunks(record.doc_id)),
        )
        for record in project.documents()
    }


def results_of(project: Project, query: str) -> dict[tuple[str, str], float]:
    """Return the score of each result of a query, by document id and text."""
    response = project.retrieve(query, top_k=1_000)
    return {(hit.source.file_path or "", hit.text): hit.score for hit in response.results}


def differences(synced: Project, fresh: Project) -> list[str]:
    """Return how a project differs from one whose documents were ingested at once.

    Of several files with the same content, any may be the document: its id, and the contexts with its name, may differ.
    """
    ours, theirs = state_of(synced), state_of(fresh)
    problems = []
    for doc_id in sorted(ours.keys() & theirs.keys()):
        if ours[doc_id] != theirs[doc_id]:
            problems.append(f"{doc_id} differs: {ours[doc_id]} instead of {theirs[doc_id]}")
    extra = sorted(ours[doc_id].text for doc_id in ours.keys() - theirs.keys())
    absent = sorted(theirs[doc_id].text for doc_id in theirs.keys() - ours.keys())
    if extra != absent:
        names = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
        problems.append(f"documents differ: {names[0]} instead of {names[1]}")
    if not problems and ours.keys() == theirs.keys():
        for query in QUERIES:
            found, expected = results_of(synced, query), results_of(fresh, query)
            # The order of documents in the indexes differs, and with it the rounding of sums.
            if found != pytest.approx(expected, rel=1e-4):
                problems.append(f"the results for {query!r} differ: {found} instead of {expected}")
    return problems
