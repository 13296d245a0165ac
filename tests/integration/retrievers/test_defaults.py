"""Retrievers that are built from the index of a project without options give the results of the project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import Document, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import (
    HybridRetriever,
    LexicalRetriever,
    Project,
    ProjectConfig,
    ProjectManager,
    SemanticRetriever,
)
from llama_index_contextual.config import Mode

PLACES = ("Haldermoor", "Tarn Coast", "Upper Vale", "Eskdale", "Zürich")
TOPICS = {
    "pressure": "The water pressure in {place} is at least {n} bar. Valves are tested in spring. Report leaks at once.",
    "tariff": "The tariff for {place} is {n} euros per cubic metre.\n\n| year | fee |\n|---|---|\n| 2024 | {n} |\n",
    "pump": "Error TS-{n}9 at the pump of {place} means that it runs dry. Stop it, and call the operator.",
    "garden": "Households in {place} pay no waste water charge for gardens from May to September, up to {n} m³.",
    "café": "The staff café in {place} serves {n} meals a day. Guests pay at the till, and expenses are refunded.",
    "contract": "A contract for {place} can be ended with {n} weeks' notice. The deposit is returned within a month.",
}
QUESTIONS = (
    "What does error TS-49 mean?",
    "How high is the pressure in Tarn Coast?",
    "Is there a charge for gardens in Upper Vale, and until when?",
    "fee 2024",
    "Who serves meals at the café in Zürich?",
    "notice",
    "an unknown word: xyzzyqq",
)
OF_TWO_PLACES = MetadataFilters(
    filters=[MetadataFilter(key="place", value=["Tarn Coast", "Zürich"], operator=FilterOperator.IN)]
)
MODES: Sequence[Mode] = get_args(Mode)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with more chunks than a search returns, in documents of different lengths."""
    texts: dict[str, list[str]] = {}
    for number, place in enumerate(PLACES):
        sections = [
            f"## {topic.title()}\n\n{text.format(place=place, n=number + at)}"
            for at, (topic, text) in enumerate(TOPICS.items())
        ]
        texts[place] = sections * (2 + number % 3)
    project = ProjectManager(tmp_path_factory.mktemp("defaults")).create(
        "utility", ProjectConfig.local(chunk_size=60, chunk_overlap=10)
    )
    project.ingest(
        [
            Document(id_=f"{place}.md", text=f"# {place}\n\n" + "\n\n".join(parts), metadata={"place": place})
            for place, parts in texts.items()
        ]
    )
    assert project.info().chunks > 50
    return project


def component(project: Project, mode: Mode, **options: Any) -> BaseRetriever:
    """Return the retriever of a mode, built by hand from the index of a project."""
    legs: dict[str, BaseRetriever] = {
        "semantic": SemanticRetriever(project.index, **options),
        "lexical": LexicalRetriever(project.live_version.index, **options),
    }
    return legs[mode] if mode in legs else HybridRetriever([*legs.values()], **options)


def results(hits: Sequence[NodeWithScore]) -> list[Any]:
    """Return the ids, scores, evidence and marks, in order."""
    names = ("rank", "semantic", "lexical", "document", "spotlight")
    return [(hit.node.node_id, hit.score, *(getattr(hit, name) for name in names)) for hit in hits]


@pytest.mark.parametrize("filters", [None, OF_TWO_PLACES], ids=["all", "filtered"])
@pytest.mark.parametrize("mode", MODES)
async def test_components_give_the_results_of_the_project(
    project: Project, mode: Mode, filters: MetadataFilters | None
) -> None:
    options = {} if filters is None else {"filters": filters}
    retriever, counts = component(project, mode, **options), []
    for question in QUESTIONS:
        expected = results(project.retrieve(question, mode=mode, filters=filters).results)
        assert results(retriever.retrieve(question)) == expected
        assert results(await retriever.aretrieve(question)) == expected
        counts.append(len(expected))
    assert max(counts) == project.config.top_k


@pytest.mark.parametrize("k", [1, 3, 25, 60])
@pytest.mark.parametrize("mode", MODES)
def test_components_give_any_number_of_results_of_the_project(project: Project, mode: Mode, k: int) -> None:
    retriever = component(project, mode, similarity_top_k=k)
    for question in QUESTIONS:
        expected = project.retrieve(question, mode=mode, top_k=k)
        assert results(retriever.retrieve(question)) == results(expected.results)


def test_the_order_of_the_legs_does_not_matter(project: Project) -> None:
    semantic, lexical = SemanticRetriever(project.index), LexicalRetriever(project.live_version.index)
    for legs in ([semantic, lexical], [lexical, semantic]):
        hits = HybridRetriever([*legs]).retrieve(QUESTIONS[0])
        assert results(hits) == results(project.retrieve(QUESTIONS[0]).results)


@pytest.mark.parametrize("mode", MODES)
def test_components_give_the_results_for_an_embedding(project: Project, mode: Mode) -> None:
    embedding = project.embed_model.get_query_embedding("A deposit is returned")
    bundle = QueryBundle("pressure", embedding=embedding)
    expected = project.as_retriever(mode=mode).retrieve(bundle)
    assert results(component(project, mode).retrieve(bundle)) == results(expected)
    texts = QueryBundle("pressure", custom_embedding_strs=["A deposit is returned", "Guests pay at the till."])
    expected = project.as_retriever(mode=mode).retrieve(texts)
    assert results(component(project, mode).retrieve(texts)) == results(expected)


def test_the_retriever_of_a_projects_nodes_ranks_words_as_the_project_does(project: Project) -> None:
    retriever = LexicalRetriever.from_defaults(index=project.index)
    for question in QUESTIONS:
        expected = project.retrieve(question, mode="lexical")
        assert results(retriever.retrieve(question)) == results(expected.results)
