"""Stored units are those of the chunks, and a search uses the directions that fit its word vectors."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.words import words_identity
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.derived import is_outdated
from llama_index_contextual.index.manifest import UNITS_FILE, DerivedEntry, read_manifest, read_records
from llama_index_contextual.index.units import Units, UnitsBuilder
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.metadata import CONTEXT
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.editions import make_outdated
from tests.support.models import CountingEmbedding
from tests.support.trees import write

TEXTS = {
    "tariff": (
        "# Tariffs\n\nThe tariffs of the zones in FY2018.\n\n"
        "| Zone | Fee | 2018 |\n|---|---|---|\n| Upper Vale | 2.95 | 3.10 |\n| Tarn Coast | 2.10 | 2.20 |\n\n"
        "Bills are due on May 2, 2019."
    ),
    "code": "import os\n\n\ndef area(radius):\n    return 3.14 * radius**2\n\n\nprint(area(2))\n",
    "chinese": "# 水泵\n\n水泵在正午停止运转。更换黄铜阀门之前请先关闭电源。",
    "arabic": "# المضخة\n\nتتوقف المضخة عند الظهر. استبدل الصمام قبل التشغيل.",
    "headings": "# One\n\n## Two\n\n### Three\n\nPumps:\n\n- The pump runs dry.\n- TS-999 means a leak.\n\n# Four\n",
    "wrapped": "Water for gardens is metered apart from that of the\nhouse, and free in spring.\n\nnext paragraph",
    "empty": "",
    "signs": "é\u0301 \u00a0 🙂 ___ " + "x" * 300,
}
QUERIES = ("fee of Tarn Coast", "水泵", "What does TS-999 mean?", "zebra")


def create(root: Path, **changes: Any) -> Project:
    settings = {"context": "structural", "chunk_size": 40, "chunk_overlap": 0, "segment_size": 40, **changes}
    return ProjectManager(root).create("plant", ProjectConfig.local(**settings), embed_model=CountingEmbedding())


def load(project: Project) -> Project:
    return ProjectManager(project.directory.parent).load(project.name, embed_model=CountingEmbedding())


def ingest(project: Project) -> Project:
    """Ingest some of the texts together, and the others one by one."""
    names = list(TEXTS)
    for group in (names[:4], *([name] for name in names[4:])):
        project.ingest([Document(id_=name, text=TEXTS[name], metadata={"kind": name}) for name in group])
    return project


def assert_units_are_those_of_the_chunks(project: Project) -> None:
    """Compare the units of all rows, of some rows in another order, and the files of the parts."""
    version = project.state.live.current()
    index = version.index
    rows = np.arange(len(index.ids))
    for some in (rows, rows[::-1], rows[1::2], rows[:0], np.repeat(rows[:2], 2)):
        expected = UnitsBuilder(None)
        for chunk in index.fetch(some.tolist()):
            language = version.records.by_id[chunk.doc_id].language
            analyzer = None if index.lexical is None else Analyzer(language, has_periods=True)
            expected.add(chunk.text, chunk.metadata, analyzer)
        assert_equal(index.units(some), expected.build())


def assert_equal(units: Units, expected: Units) -> None:
    assert units.table.dtype.names is not None
    for name in ("firsts", "term_firsts", "terms", *units.table.dtype.names):
        values, expected_values = getattr(units, name), getattr(expected, name)
        assert values.shape == expected_values.shape or not len(values) == len(expected_values) == 0, name
        assert values.tolist() == expected_values.tolist(), name


def files_of(project: Project) -> dict[str, bytes]:
    """Return the content of the file of each part of the live version."""
    name = current_name(project.directory)
    assert name is not None
    parts = read_manifest(version_directory(project.directory, name)).parts
    return {part.name: (project.directory / "parts" / part.name / UNITS_FILE).read_bytes() for part in parts}


@pytest.mark.parametrize("context", ["none", "structural"])
@pytest.mark.parametrize("indexes", ["hybrid", "semantic", "lexical"])
def test_stored_units_are_those_of_the_chunks(context: str, indexes: str, tmp_path: Path) -> None:
    project = ingest(create(tmp_path, context=context, indexes=indexes))
    assert_units_are_those_of_the_chunks(load(project))
    chunks = project.chunks("tariff")
    assert any(CONTEXT in chunk.metadata for chunk in chunks) == (context != "none")
    assert len(files_of(project)) > 1


WRITES: dict[str, Callable[[Project, Path], object]] = {
    "remove": lambda project, _: project.remove(["code", "headings"]),
    "replace": lambda project, _: project.ingest([Document(id_="code", text=TEXTS["tariff"])]),
    "sync": lambda project, folder: project.sync_folders([folder]),
    "rebuild, derived": lambda project, _: project.rebuild(derived=True),
    "language": lambda project, _: (project.update_config(language="german"), project.rebuild()),
    "many parts": lambda project, _: [project.ingest([Document(id_=str(n), text=f"Note {n}.")]) for n in range(9)],
}


@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES.keys())
def test_units_are_those_of_the_chunks_after_any_change(
    change: Callable[[Project, Path], object], tmp_path: Path
) -> None:
    write(tmp_path / "files" / "note.md", "# Note\n\nThe note of a day.")
    write(tmp_path / "files" / "gone.md", "# Gone\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    project = ingest(create(tmp_path / "root"))
    project.ingest([tmp_path / "files"])
    write(tmp_path / "files" / "note.md", "# Note\n\nThe note of another day.")
    (tmp_path / "files" / "gone.md").unlink()
    change(project, tmp_path / "files")
    assert_units_are_those_of_the_chunks(project)
    assert_units_are_those_of_the_chunks(load(project))
    assert load(project).verify().sound


def test_the_file_of_a_merged_part_is_that_of_documents_ingested_together(tmp_path: Path) -> None:
    documents = [Document(id_=name, text=text) for name, text in TEXTS.items() if text]
    documents += [Document(id_=str(number), text=f"Note {number}.") for number in range(4)]
    project = create(tmp_path / "apart")
    for document in documents:
        project.ingest([document])
    merged = max(files_of(project), key=lambda name: len(read_records(project.directory / "parts" / name)))
    ids = [record.doc_id for record in read_records(project.directory / "parts" / merged)]
    assert len(ids) > 2
    together = create(tmp_path / "together")
    together.ingest([document for document in documents if document.id_ in ids])
    assert list(files_of(together).values()) == [files_of(project)[merged]]


@pytest.mark.parametrize("chosen", ["tariff", "chinese", "signs"])
def test_a_restricted_project_has_the_units_of_its_documents(chosen: str, tmp_path: Path) -> None:
    project = ingest(create(tmp_path))
    some = project.only({"kind": chosen})
    assert len(some.state.live.current().index.ids) == len(project.chunks(chosen)) > 0
    assert_units_are_those_of_the_chunks(some)
    assert {hit.source.doc_id for query in QUERIES for hit in some.retrieve(query)} == {chosen}


def test_units_of_a_part_without_the_file_are_made_from_its_chunks(tmp_path: Path) -> None:
    project = ingest(create(tmp_path))
    before = [project.retrieve(query).to_dict()["results"] for query in QUERIES]
    make_outdated(project.directory, has_files=False)
    without = load(project)
    assert not list(project.directory.glob(f"parts/*/{UNITS_FILE}"))
    assert_units_are_those_of_the_chunks(without)
    assert_units_are_those_of_the_chunks(without.only({"kind": "tariff"}))
    assert [without.retrieve(query).to_dict()["results"] for query in QUERIES] == before
    without.remove(["signs"])
    assert len(files_of(without)) > 0
    assert_units_are_those_of_the_chunks(without)


@pytest.mark.skipif(find_spec("qdrant_client") is None, reason="needs the extra qdrant")
def test_the_units_of_a_project_with_an_engine_are_stored_in_its_parts(tmp_path: Path) -> None:
    project = ingest(create(tmp_path / "root", backend=f"qdrant:{tmp_path / 'engine'}"))
    assert_units_are_those_of_the_chunks(project)
    files = ingest(create(tmp_path / "files"))
    assert list(files_of(project).values()) == list(files_of(files).values())
    project.remove(["code"])
    assert_units_are_those_of_the_chunks(project)


# ---- word vectors ----------------------------------------------------------------------------------------------------

MODULES = ("index.units", "index.derived", "index.part")
NEEDS_WORDLLAMA = pytest.mark.skipif(not words_identity(), reason="needs the extra local")


def use_words(monkeypatch: pytest.MonkeyPatch, identity: str) -> None:
    """Let the package see other word vectors, or none if the identity is empty."""
    for module in MODULES:
        monkeypatch.setattr(f"llama_index_contextual.{module}.words_identity", lambda: identity)


def entry_of(project: Project) -> DerivedEntry:
    """Return the manifest entry of the derived data of all parts."""
    name = current_name(project.directory)
    assert name is not None
    first, *others = (part.derived for part in read_manifest(version_directory(project.directory, name)).parts)
    assert all(other == first for other in others)
    return first


def widths(project: Project) -> int:
    index = project.state.live.current().index
    return int(index.units(np.arange(len(index.ids))).directions.shape[1])


@NEEDS_WORDLLAMA
def test_units_stored_without_wordllama_get_directions_when_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        use_words(patch, "")
        project = ingest(create(tmp_path))
        assert (entry_of(project).words, widths(project)) == ("", 0)
        hit = project.retrieve("fee of Tarn Coast").results[0]
        assert hit.spotlight is not None
        assert "Tarn Coast" in hit.spotlight.text  # by its words
    installed = load(project)
    assert widths(installed) == 0
    installed.remove(["signs"])
    assert entry_of(installed).words == words_identity()
    assert widths(installed) > 0
    assert_units_are_those_of_the_chunks(installed)


@NEEDS_WORDLLAMA
@pytest.mark.parametrize("identity", ["", "0f"], ids=["none", "other"])
def test_directions_of_other_word_vectors_are_not_used(
    identity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = ingest(create(tmp_path))
    assert all(Units.load(path).directions.shape[1] for path in project.directory.glob(f"parts/*/{UNITS_FILE}"))
    derived = entry_of(project)
    assert not is_outdated(derived, project.config)
    use_words(monkeypatch, identity)
    other = load(project)
    assert (widths(other), widths(other.only({"kind": "tariff"}))) == (0, 0)
    hit = other.retrieve("fee of Tarn Coast").results[0]
    assert hit.spotlight is not None
    assert "Tarn Coast" in hit.spotlight.text
    # Without WordLlama, they are kept as they are; with other vectors, they are made again.
    assert is_outdated(derived, project.config) == bool(identity)


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["flip", "cut", "remove"])
def test_a_damaged_file_is_reported_and_made_again_by_a_repair(spoil: str, tmp_path: Path) -> None:
    project = ingest(create(tmp_path))
    before = files_of(project)
    name = next(iter(before))
    path, content = project.directory / "parts" / name / UNITS_FILE, before[name]
    if spoil == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if spoil == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    (problem,) = load(project).verify().problems
    assert problem.file == f"parts/{name}/{UNITS_FILE}"
    assert "tariff" in problem.documents
    with pytest.raises(CorruptVersionError, match=UNITS_FILE):
        load(project).retrieve("fee")
    repair = load(project).verify(repair=True).repair
    assert repair is not None
    assert (repair.missing, repair.unnamed, repair.remade) == ({}, 0, len(problem.documents))
    assert_units_are_those_of_the_chunks(load(project))
    assert content in files_of(load(project)).values()
