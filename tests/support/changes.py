"""Random changes of a folder, and the state of a project that is compared with one fresh ingest of it."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_contextual.project.project import Project

WORDS = (
    *("pump", "valve", "tariff", "lease", "quarter", "revenue", "fund", "court", "notice", "tenant"),
    *("engine", "filter", "bearing", "iron", "copper", "duty", "margin", "audit", "clause", "harbour"),
    *("vessel", "freight", "insurance", "premium", "turbine", "boiler", "sensor", "alarm", "signal", "threshold"),
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
        self._unfinished: dict[Path, str] = {}

    def change(self) -> None:
        """Make one change: of a file, of a folder, or a new file."""
        files, folders = self.files(), sorted(path for path in self.folder.iterdir() if path.is_dir())
        draw = self._random.random()
        if files and draw < 0.65:
            self._change_file(self._random.choice(files), files)
        elif folders and draw < 0.72:
            self._change_folder(self._random.choice(folders), files)
        else:
            self._add(self._random.choice(("create", "create", "create", "write half of", "ignored")))

    def finish(self) -> None:
        """Complete the files that were only written in part."""
        for path, text in self._unfinished.items():
            if path.is_file():
                path.write_text(text, encoding="utf-8")
        self._unfinished.clear()

    def files(self) -> list[Path]:
        """Return the documents in the folder."""
        return sorted(
            path
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix in (".md", ".txt") and not path.name.startswith(".")
        )

    def _change_file(self, path: Path, files: list[Path]) -> None:
        kinds = {
            "edit": 4,
            "move": 4,
            "delete": 3,
            "copy": 1,
            "swap": 1,
            "replace by a folder": 1,
            "touch": 1,
            "save": 1,
        }
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        self.log.append(f"{kind} {path}")
        match kind:
            case "edit":
                path.write_text(self._text(), encoding="utf-8")
            case "touch":
                path.touch()
            case "move":
                path.rename(self._free_path())
            case "copy":
                shutil.copy2(path, self._free_path())
            case "delete" if len(files) > 3:
                path.unlink()
            case "save":
                _temporary(path).write_text(self._text(), encoding="utf-8")
                _temporary(path).replace(path)
            case "swap":
                other = self._random.choice(files)
                if other != path:
                    path.rename(_temporary(path))
                    other.rename(path)
                    _temporary(path).rename(other)
            case "replace by a folder":
                path.unlink()
                path.mkdir()
                (path / "inside.md").write_text(self._text(), encoding="utf-8")

    def _change_folder(self, path: Path, files: list[Path]) -> None:
        target = self.folder / f"folder {self._random.randint(1, 99)}"
        if self._random.random() < 0.5 and not os.path.lexists(target):
            self.log.append(f"move folder {path} to {target}")
            path.rename(target)
        elif sum(path not in file.parents for file in files) > 3:
            self.log.append(f"delete folder {path}")
            shutil.rmtree(path)

    def _add(self, kind: str) -> None:
        path = self.folder / self._random.choice(IGNORED) if kind == "ignored" else self._free_path()
        self.log.append(f"{kind} {path}")
        text = self._text()
        if kind == "write half of":
            self._unfinished[path] = text
            text = text[: len(text) // 2]
        path.write_text(text, encoding="utf-8")

    def _text(self) -> str:
        draw, number = self._random, self._random.getrandbits(32)
        sections = [
            f"## Section {n}\n\n{' '.join(draw.choices(WORDS, k=draw.randint(5, 60)))}."
            for n in range(draw.randint(0, 4))
        ]
        return "\n\n".join([f"# Document {number}", f"Number {number % 30} is here.", *sections, ""])

    def _free_path(self) -> Path:
        while True:
            folder = self.folder / self._random.choice(FOLDERS)
            name = self._random.choice(NAMES) + self._random.choice(("", "", f" {self._random.randint(1, 30)}"))
            path = folder / f"{name}{self._random.choice(('.md', '.md', '.txt'))}"
            if not os.path.lexists(path) and not any(parent.is_file() for parent in path.parents):
                path.parent.mkdir(parents=True, exist_ok=True)
                return path


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def state_of(project: Project) -> dict[str, tuple[str, list[str]]]:
    """Return the text and the chunks with their contexts, by document id."""
    return {
        record.doc_id: (
            project.read(record.doc_id),
            [node.get_content(MetadataMode.EMBED) for node in project.chunks(record.doc_id)],
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
    problems = [
        f"{doc_id} differs: {ours[doc_id]} instead of {theirs[doc_id]}"
        for doc_id in sorted(ours.keys() & theirs.keys())
        if ours[doc_id] != theirs[doc_id]
    ]
    only_ours, only_theirs = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    if sorted(ours[doc_id][0] for doc_id in only_ours) != sorted(theirs[doc_id][0] for doc_id in only_theirs):
        problems.append(f"documents differ: {only_ours} instead of {only_theirs}")
    if not problems and ours.keys() == theirs.keys():
        for query in QUERIES:
            found, expected = results_of(synced, query), results_of(fresh, query)
            # The order of documents in the indexes differs, and with it the rounding of sums.
            if found != pytest.approx(expected, rel=1e-4):
                problems.append(f"the results for {query!r} differ: {found} instead of {expected}")
    return problems
