"""A search can end with the last result that is likely to answer the question; `why_not` and limits of tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from llama_index.core.schema import Document, MetadataMode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.calibrate import calibrate
from llama_index_contextual.index.manifest import MANIFEST, read_manifest
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.confidence import MODELS
from llama_index_contextual.search.search import sure_results

QUESTION = "What does error TS-999 mean?"
NUMBER = 30


@pytest.fixture(scope="module")
def manuals(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Thirty manuals, of which one answers the question; no test changes the project."""
    project = ProjectManager(tmp_path_factory.mktemp("cut")).create("manuals", ProjectConfig.local(context="none"))
    texts = [f"Chapter {number} describes valves, filters and seals of kind {number}." for number in range(NUMBER - 1)]
    documents = [Document(text=text, doc_id=f"{number}") for number, text in enumerate(texts)]
    project.ingest([*documents, Document(text="Error TS-999 means that the pump runs dry.", doc_id="manual")])
    return project


def test_without_a_limit_all_results_are_returned(manuals: Project) -> None:
    response = manuals.retrieve(QUESTION)
    assert (len(response), len(response.folded)) == (20, 0)


def test_with_a_limit_the_results_end_with_the_last_one_that_reaches_it(manuals: Project) -> None:
    everything = manuals.retrieve(QUESTION)
    response = manuals.retrieve(QUESTION, min_relevance="auto")
    assert [hit.node_id for hit in [*response, *response.folded]] == [hit.node_id for hit in everything]
    assert [hit.source.doc_id for hit in response] == ["manual"]
    cut = MODELS["hybrid"].cut
    assert all((hit.relevance or 0) < cut <= (response[-1].relevance or 0) for hit in response.folded)
    assert len(manuals.retrieve(QUESTION, min_relevance=0)) == 20
    assert len(manuals.retrieve(QUESTION, min_relevance=1.0)) == 0


def test_the_results_before_the_last_sure_one_are_kept_in_their_order() -> None:
    hits = [type("Hit", (), {"relevance": relevance})() for relevance in (0.9, 0.1, None, 0.6, 0.2)]
    assert [sure_results(hits, cut) for cut in (0.0, 0.15, 0.5, 0.7, 0.95)] == [5, 5, 4, 1, 0]
    assert sure_results([], 0.5) == 0


def test_a_result_that_answers_the_rest_of_the_question_is_added(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("halves", ProjectConfig.local(context="none"))
    texts = [f"Chapter {number} describes valves, filters and seals of kind {number}." for number in range(NUMBER)]
    end = "The lease of the harbour warehouse ends on the last day of June."
    signs = "Orders for lubricants are signed by the purchasing officer."
    project.ingest([Document(text=text, doc_id=text) for text in (*texts, end, signs)])
    both = project.retrieve(
        "When does the lease of the harbour warehouse end and who signs orders?", min_relevance="auto"
    )
    assert [hit.text for hit in both] == [end, signs]
    assert len(both) + len(both.folded) == 20
    assert len({hit.node_id for hit in (*both, *both.folded)}) == 20
    alone = project.retrieve("When does the lease of the harbour warehouse end?", min_relevance="auto")
    assert [hit.text for hit in alone] == [end]
    cut = MODELS["hybrid"].cut
    assert len(project.retrieve(both.query, min_relevance=cut)) == 1, "a limit of one's own is kept"


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_nothing_is_found_for_a_word_that_no_document_contains(manuals: Project, mode: Mode) -> None:
    response = manuals.retrieve("zembla", mode=mode, min_relevance="auto")
    assert (len(response), response.missing) == (0, "No document mentions “zembla”.")
    assert response.verdict().endswith(response.missing)
    assert response.to_dict()["unknown_words"] == ["zembla"]


def test_a_setting_of_the_project_replaces_the_usual_limit(manuals: Project, tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("a", ProjectConfig.local(context="none", min_relevance=0.0))
    project.ingest([Document(text=f"Pump {number} runs.", doc_id=f"{number}") for number in range(8)])
    assert len(project.retrieve("zembla", min_relevance="auto")) == 8
    assert len(project.retrieve("zembla", min_relevance=0.9)) == 0
    project.update_config(min_relevance=0.9)
    assert len(project.retrieve("zembla")) == 8, "in Python, there is no limit unless one is given"


@pytest.mark.parametrize("value", [-0.1, 1.1, "high", True])
def test_a_limit_that_is_no_probability_is_rejected(manuals: Project, value: object) -> None:
    with pytest.raises(InputError, match="use a number from 0 to 1"):
        manuals.retrieve(QUESTION, min_relevance=value)  # type: ignore[arg-type]


def test_a_retriever_without_a_number_of_results_returns_what_an_answer_may_read(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("a", ProjectConfig.local(context="none", answer_tokens=100))
    project.ingest([Document(text="The pump runs dry. " * 8 + f"Part {n}.", doc_id=f"{n}") for n in range(20)])
    everything = project.retrieve("pump")
    nodes = project.as_retriever().retrieve("pump")
    sizes = [count_tokens(node.node.get_content(metadata_mode=MetadataMode.LLM)) for node in everything]
    assert 0 < len(nodes) < 20
    assert sum(sizes[: len(nodes)]) <= 100 < sum(sizes[: len(nodes) + 1])
    assert [node.node_id for node in nodes] == [node.node_id for node in everything][: len(nodes)]
    assert len(asyncio.run(project.as_retriever().aretrieve("pump"))) == len(nodes)
    assert len(project.as_retriever(top_k=20).retrieve("pump")) == 20
    project.update_config(answer_tokens=1)
    assert len(project.as_retriever().retrieve("pump")) == 1, "the best result is always returned"


# ---- calibration -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Forty parts, each with an order number; no test changes the project."""
    project = ProjectManager(tmp_path_factory.mktemp("parts")).create("parts", ProjectConfig.local(context="none"))
    texts = [f"The order number of the {name(number)} is {1000 + number}." for number in range(40)]
    project.ingest([Document(text=text, doc_id=f"{number}") for number, text in enumerate(texts)])
    return project


def name(number: int) -> str:
    return f"{('brass', 'steel', 'copper', 'rubber')[number % 4]} valve {number}"


def question(number: int) -> dict[str, object]:
    return {
        "question": f"What is the order number of the {name(number)}?",
        "evidence": [f"of the {name(number)} is {1000 + number}."],
    }


def test_calibration_keeps_the_evidence_and_says_how_many_results_remain(parts: Project) -> None:
    limits = calibrate(parts, [question(number) for number in range(40)])
    assert (limits.questions, limits.evidence) == (40, 40)
    assert limits.kept_first >= 0.97
    assert limits.kept >= 0.9
    assert limits.shown < limits.results == 20
    responses = [parts.retrieve(str(question(number)["question"])) for number in range(40)]
    shown = [sure_results(response.results, limits.min_relevance) for response in responses]
    assert limits.shown == sum(shown) / 40
    assert limits.nothing == shown.count(0)
    assert limits.min_confidence is None or limits.low > 0.05


def test_a_calibration_does_not_depend_on_an_earlier_one(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("a", ProjectConfig.local(context="none"))
    project.ingest([Document(text=f"Part {number} is described here.", doc_id=f"{number}") for number in range(40)])
    questions = [
        {"question": f"Where can I read about zebras and part {number}?", "evidence": [f"Part {number} is described"]}
        for number in range(40)
    ]
    first = calibrate(project, questions)
    project.update_config(min_relevance=first.min_relevance, min_confidence=0.001)
    again = calibrate(project, questions)
    assert (again.low, again.min_confidence) == (first.low, first.min_confidence)


def test_too_little_evidence_is_an_error(parts: Project) -> None:
    with pytest.raises(InputError, match="contain 3 pieces of the evidence, but at least 30 are needed"):
        calibrate(parts, [question(number) for number in range(3)])


def test_a_version_from_before_the_newest_settings_is_searched(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("a", ProjectConfig.local(context="none"))
    project.ingest([Document(text="The pump runs dry.", doc_id="a")])
    directory = project.live_version.directory
    manifest = read_manifest(directory)
    old = {name: value for name, value in manifest.config.items() if name not in ("embed_prefixes", "min_relevance")}
    (directory / MANIFEST).write_bytes(manifest.model_copy(update={"config": old}).to_json())
    assert len(ProjectManager(tmp_path).load("a").retrieve("pump")) == 1
