"""Explanations: the numbers add up to the score, and a near miss names what it lacks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.retrievers import conftest, corpus
from tests.support.models import CountingEmbedding

QUERY = "error TS-999 of the pump"
TEXTS = {**conftest.TEXTS, "tariff": "The tariff is due in March."}


def project_of(root: Path, **settings: Any) -> Project:
    return corpus.project_of(root, TEXTS, **settings)


def computed(arithmetic: str) -> float:
    """Return what the left side of `semantic 0.3 × (…) / (…) + … = score` comes to."""
    left, _, _ = arithmetic.rpartition(" = ")
    terms = re.sub(r"\b(semantic|lexical|document|shared terms|best chunk|best sentence) ", "", left).replace("×", "*")
    terms = re.sub(r"\((\S+) / (\S+)\)²", lambda ratio: f"{(float(ratio[1]) / float(ratio[2])) ** 2:f}", terms)
    numbers = r"[0-9.eE+\-*/() ]+"
    assert re.fullmatch(numbers, terms), terms
    total = 0.0
    for term in re.split(r" \+ (?![^(]*\))", terms):
        top, _, bottom = term.partition(" / ")
        weight, _, value = top.rpartition(" * ")
        total += (float(weight) if weight else 1.0) * _number(value) / (_number(bottom) if bottom else 1.0)
    return total


def _number(text: str) -> float:
    text = text.strip("()")
    for sign, factor in ((" - ", -1), (" + ", 1)):
        first, found, second = text.partition(sign)
        if found:
            return float(first) + factor * float(second)
    return float(text)


@pytest.mark.parametrize(
    "settings", [{"fusion": "score"}, {"fusion": "rrf"}, {"document_weight": 0.0}, {"rerank": None}], ids=str
)
def test_the_arithmetic_adds_up_to_the_score(tmp_path: Path, settings: dict[str, Any]) -> None:
    response = project_of(tmp_path, **settings).retrieve(QUERY, top_k=2, explain=True)
    everything = [*response.explanations, *response.near_misses]
    assert len(everything) == 4
    for one in everything:
        assert computed(one.arithmetic) == pytest.approx(one.score, abs=2e-3)
        assert float(one.arithmetic.rpartition(" = ")[2]) == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
async def test_explaining_does_not_change_the_results(tmp_path: Path, mode: Mode) -> None:
    project = project_of(tmp_path)
    plain, explained = (project.retrieve(QUERY, mode=mode, top_k=2, explain=e) for e in (False, True))
    assert plain.results == explained.results
    assert (plain.explanations, plain.near_misses) == ((), ())
    assert "explanations" not in plain.to_dict()
    assert [one.node_id for one in explained.explanations] == [hit.node_id for hit in explained]
    assert explained.to_dict()["explanations"][0]["rank"] == 1
    assert await project.aretrieve(QUERY, mode=mode, top_k=2, explain=True) == explained


def test_terms_are_listed_by_text_and_context(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(), embed_model=CountingEmbedding())
    text = "# Pump manual\n\nAcme makes it.\n\n# Faults\n\nError TS-999 means that it runs dry."
    project.ingest([Document(id_="manual", text=text, metadata={"title": "Borealis"})])
    (one, *_) = project.retrieve("Borealis TS-999 quokka", explain=True).explanations
    assert "ts-999" in one.in_text
    assert one.missing == ("quokka",)
    assert set(one.in_text) | set(one.in_context) == {"boreali", "ts-999", "ts999", "ts", "999"}


def test_a_near_miss_says_what_it_lacked(tmp_path: Path) -> None:
    response = project_of(tmp_path, document_weight=0.0, rerank=None).retrieve("TS-999", top_k=1, explain=True)
    miss = response.near_misses[0]
    assert miss.rank == 2
    assert miss.why_not is not None
    # One of four scores is above 0, so it is 4 / sqrt(3) standard deviations; times 0.65.
    assert re.match(r"\d\.\d{4} below result 1; 1\.5011 less from the lexical ranking \(not among", miss.why_not)
    assert miss.why_not.endswith("missing terms: ts-999, ts999, ts, 999")


@pytest.mark.parametrize("mode", ["semantic", "lexical"])
def test_the_best_sentence_counts_in_a_single_index_too(tmp_path: Path, mode: Mode) -> None:
    project = project_of(tmp_path)
    response = project.retrieve(QUERY, mode=mode, top_k=4, explain=True)
    for one in response.explanations:
        parts = re.fullmatch(r".+ ([\d.]+) \+ best sentence \((.+)\) = ([\d.]+)", one.arithmetic)
        assert parts is not None
        assert float(parts[1]) + _number(parts[2]) == pytest.approx(float(parts[3]), abs=2e-4)
    plain = project.as_retriever(mode=mode).changed(rerank=None).retrieve(QUERY)
    assert {hit.node.node_id for hit in plain} == {hit.node_id for hit in response}


def test_a_near_miss_with_a_worse_sentence_says_so(tmp_path: Path) -> None:
    response = project_of(tmp_path, document_weight=0.0).retrieve("TS-999", top_k=1, explain=True)
    assert "less from the best sentence" in str(response.near_misses[0].why_not)


def test_the_repr_shows_the_explanations(tmp_path: Path) -> None:
    shown = repr(project_of(tmp_path).retrieve(QUERY, top_k=1, explain=True))
    for part in ("semantic rank 1", "in the text: error, ts-999", "Near misses\n2. ", "why not: "):
        assert part in shown


def test_terms_that_the_document_has_elsewhere_are_taken_off_in_the_arithmetic(tmp_path: Path) -> None:
    project = project_of(tmp_path, chunk_size=40, chunk_overlap=0)
    lease = "\n\n".join(f"Borealis and Aurora agree on point {n} of the lease." for n in range(8))
    project.ingest([Document(id_="lease", text=f"{lease}\n\nBorealis pays in May.")])
    found = project.retrieve("When does Borealis pay for the lease?", top_k=3, explain=True).explanations
    assert any("shared terms (-" in explanation.arithmetic for explanation in found)
    assert [computed(one.arithmetic) for one in found] == pytest.approx([one.score for one in found], abs=0.002)
