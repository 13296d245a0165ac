"""Figures planted in tables that go on over several chunks: the hit names the column of the figure."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from llama_index_contextual import AdjacentChunkMerger, Project, ProjectConfig, ProjectManager
from llama_index_contextual.answering.citations import Passage, check_citations
from llama_index_contextual.answering.prompts import passages_prompt
from llama_index_contextual.metadata import CONTINUED_TABLE, TABLE_HEAD
from llama_index_contextual.tools.models import SearchResult
from tests.support.models import ScriptedLLM
from tests.support.pdf_files import RawPdf, show

SEED = 15
YEARS = ("2023", "2022", "2021")
FIRMS = ("Orlen Valves", "Brack Ferries", "Tolmin Glass", "Hasle Timber", "Vire Dairies", "Nork Cables", "Sund Mills")
FIRMS += ("Arden Pumps", "Lomma Paper", "Kestrel Rail")
SYLLABLES = ("bar", "dol", "fen", "gri", "hus", "kal", "lom", "mer", "nor", "pel", "ros", "sit", "tun", "vas", "wen")
COSTS = ("insurance", "heating", "wages", "repairs", "cleaning", "freight", "training", "rent")
ROWS = 110


class Planted(NamedTuple):
    """A figure in a row of a firm's table."""

    firm: str
    row: str
    year: str
    figure: str

    @property
    def question(self) -> str:
        return f"How much did {self.firm} spend on {self.row} in {self.year}?"


def rows_of(numbers: random.Random) -> list[tuple[str, ...]]:
    """Return the rows of a table, with labels that differ."""
    places = {"".join(numbers.choices(SYLLABLES, k=3)).capitalize() for _ in range(2 * ROWS)}
    labels = [f"{place} {numbers.choice(COSTS)}" for place in numbers.sample(sorted(places), ROWS)]
    return [(label, *(f"{numbers.randint(1_000, 99_999):,}" for _ in YEARS)) for label in labels]


def pdf(firm: str, rows: list[tuple[str, ...]]) -> bytes:
    """Return a PDF of several pages; only the first has the head of the table."""
    file = RawPdf()
    body = show(50, 740, f"{firm} costs by place") + show(330, 720, "Year ended June 30,")
    body += show(50, 706, "(in thousands)") + _cells(706, YEARS)
    top = 692
    for label, *figures in rows:
        if top < 60:
            file.page(body)
            body, top = b"", 740
        body += show(50, top, label) + _cells(top, figures)
        top -= 14
    file.page(body)
    return file.data()


def _cells(top: int, cells: tuple[str, ...] | list[str]) -> bytes:
    return b"".join(show(300 + 80 * at, top, cell) for at, cell in enumerate(cells))


def markdown(firm: str, rows: list[tuple[str, ...]]) -> bytes:
    """Return Markdown with a table between pipes."""
    lines = [f"# {firm}", "", "Costs by place, in thousands, are as follows:", "", f"| Place | {' | '.join(YEARS)} |"]
    lines += ["|---|--:|--:|--:|", *(f"| {' | '.join(row)} |" for row in rows), "", "The figures are not audited."]
    return "\n".join(lines).encode()


def comma_separated(firm: str, rows: list[tuple[str, ...]]) -> bytes:
    """Return a table as CSV."""
    lines = [[f"{firm} costs by place"], ["(in thousands)", *YEARS], *rows]
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines).encode()


@pytest.fixture(scope="module")
def planted() -> tuple[dict[str, bytes], list[Planted]]:
    """Ten files, and two figures of each from the last third of its table."""
    numbers = random.Random(SEED)
    files: dict[str, bytes] = {}
    figures: list[Planted] = []
    for at, firm in enumerate(FIRMS):
        rows = rows_of(numbers)
        suffix, write = ((".pdf", pdf), (".md", markdown), (".csv", comma_separated))[at % 3]
        files[firm.lower().replace(" ", "-") + suffix] = write(firm, rows)
        for label, *values in numbers.sample(rows[2 * len(rows) // 3 :], 2):
            year = numbers.choice(YEARS)
            figures.append(Planted(firm, label, year, values[YEARS.index(year)]))
    return files, figures


@pytest.fixture(scope="module")
def project(planted: tuple[dict[str, bytes], list[Planted]], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the ten files."""
    pytest.importorskip("wordllama", reason="needs the extra local")
    root: Path = tmp_path_factory.mktemp("tables")
    (root / "files").mkdir()
    for name, data in planted[0].items():
        (root / "files" / name).write_bytes(data)
    project = ProjectManager(root / "projects").create("tables", ProjectConfig.local())
    report = project.ingest([root / "files"])
    assert len(report.added) == len(FIRMS)
    return project


def test_the_best_hit_of_20_planted_figures_names_the_column_of_the_figure(
    project: Project, planted: tuple[dict[str, bytes], list[Planted]]
) -> None:
    wrong = []
    for figure in planted[1]:
        best = project.retrieve(figure.question)[0]
        row = next((line for line in best.text.splitlines() if line.strip("| ").startswith(figure.row)), "")
        values = row.replace("|", " ").split()[len(figure.row.split()) :]
        columns = [word for word in (best.table_head or "").replace("|", " ").split() if word in YEARS]
        if dict(zip(columns, values, strict=False)).get(figure.year) != figure.figure:
            wrong.append((figure, best.source.file_name, best.table_head, row))
    assert len(planted[1]) == 20
    assert not wrong, f"seed {SEED}: {wrong}"


def test_text_and_offsets_are_those_of_the_document(project: Project) -> None:
    for document in project.documents():
        text = project.read(document.doc_id)
        for figure in project.retrieve(document.doc_id, top_k=20):
            if figure.source.doc_id == document.doc_id:
                assert figure.text == text[figure.source.start_char : figure.source.end_char]


def test_a_model_reads_the_head_above_the_text(project: Project) -> None:
    llm = ScriptedLLM(default="I could not find this in the documents.")
    response = project.retrieve("What did Orlen Valves spend?")
    continued = [chunk for chunk in response if chunk.table_head]
    assert continued
    project.as_query_engine(llm=llm, answer_tokens=30_000).query(response.query)
    shown = SearchResult.from_response(response).text_for_model(places=False)
    for chunk in continued:
        above = f"{CONTINUED_TABLE}:\n{chunk.table_head}\nText:\n{chunk.text}"
        assert above in shown
        assert above in passages_prompt([chunk])
    assert CONTINUED_TABLE in llm.history[0] or "(in thousands)" in llm.history[0]


def test_a_passage_of_several_chunks_has_the_head_of_its_first_chunk(project: Project) -> None:
    hits = project.retrieve("Kestrel Rail costs by place", top_k=20).to_nodes()
    for merged in AdjacentChunkMerger().postprocess_nodes(hits):
        starts_in_table = "thousands" not in merged.node.get_content()
        assert (TABLE_HEAD in merged.node.metadata) == starts_in_table


def test_figures_of_the_head_count_as_figures_of_the_passage() -> None:
    text, answer = "Harbour rent 12,345 11,000", "In 2023 the rent was 12,345 [Source 1]."
    assert [figure.text for figure in check_citations(answer, [Passage(text)]).unsupported] == ["2023"]
    assert check_citations(answer, [Passage(text, head="2023 2022")]).unsupported == ()


def test_terms_of_the_head_are_found_by_the_lexical_index_and_count_as_text(project: Project) -> None:
    response = project.retrieve("thousands 2021", mode="lexical", explain=True)
    continued = {chunk.node_id for chunk in response if chunk.table_head and "2021" not in chunk.text}
    assert continued
    for explanation in response.explanations:
        if explanation.node_id in continued:
            assert "2021" in explanation.in_text
