"""White space, invisible characters and the Unicode form of a question change neither ranking nor cache."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, get_args

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import Document, NodeWithScore, QueryBundle, TextNode
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual import (
    ConversationalRetriever,
    HybridRetriever,
    LexicalRetriever,
    Project,
    ProjectConfig,
    ProjectManager,
    SemanticRetriever,
)
from llama_index_contextual.agno import ContextualKnowledge
from llama_index_contextual.config import Mode
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.index.analysis import MAX_CHARACTERS, cut_query, normalise_query
from llama_index_contextual.postprocessor import ContextWindowPacker, SpotlightRerank
from llama_index_contextual.retrievers import ConversationQuery
from llama_index_contextual.retrievers.base import WeightedQuery
from llama_index_contextual.search.search import Query
from tests.support.cli import run
from tests.support.models import CountingEmbedding, ScriptedLLM

QUESTION = "When does the café in Zürich close, and what is SLA-9?"
FORMS = {
    "line break": f"{QUESTION}\n",
    "spaces before": f"  {QUESTION}",
    "runs": QUESTION.replace(" ", "\t \r\n", 3),
    "other spaces": QUESTION.replace(" ", "\u00a0", 2).replace(" ", "\u3000", 1) + "\u2028",
    "NFD": unicodedata.normalize("NFD", QUESTION),
    "zero width": f"\ufeff{QUESTION[:12]}\u200b{QUESTION[12:]}\u2060",
    "joiners": f"\u200d{QUESTION[:6]}\u200c{QUESTION[6:]}",
    "soft hyphen": QUESTION.replace("close", "clo\u00adse"),
    "long": QUESTION.replace(" ", " " * 7_000),
    "all": unicodedata.normalize("NFD", f"\u200b \n{QUESTION}\u00a0\ufeff").replace(" ", " \u200b\t"),
}
MODES = get_args(Mode)
TEXTS = (
    "The café in Zürich closes at six. Guests pay at the till.",
    "The restaurant in Zürich closes at nine; on Mondays it is closed.",
    "A café opens in Basel. What is served there is written on the board.",
    "SLA-9 is the ninth service level agreement.",
    "Service levels are agreed with customers every year.",
    "Error code TS-999 means that the pump runs dry.",
    "When the valve is closed, the pump stops.",
    "Imports of cast iron cost duty.",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    config = ProjectConfig.local(acronym_table={"SLA-9": "service level agreement"}, answer_cache=False)
    project = ProjectManager(tmp_path_factory.mktemp("forms")).create(
        "p", config, llm=ScriptedLLM(default="At six [Source 1].")
    )
    project.ingest([Document(id_=f"{at}.txt", text=text) for at, text in enumerate(TEXTS)])
    return project


def scored(hits: Iterable[NodeWithScore]) -> list[tuple[str, float | None]]:
    return [(hit.node.node_id, hit.score) for hit in hits]


def components(project: Project) -> dict[Mode, Any]:
    semantic, lexical = SemanticRetriever(project.index), LexicalRetriever(project.live_version.index)
    return {"semantic": semantic, "lexical": lexical, "hybrid": HybridRetriever([semantic, lexical])}


def doors(project: Project, mode: Mode) -> dict[str, Callable[[str], Any]]:
    """Return every way to ask a question, by name; each returns something that can be compared."""
    from llama_index_contextual.mcp import make_server
    from tests.integration.test_mcp import called

    retriever, component = project.as_retriever(mode=mode), components(project)[mode]
    embedding = project.embed_model.get_query_embedding("pump")
    conversational = ConversationalRetriever(retriever, embed_model=project.embed_model)
    history = [ChatMessage("Where is the café?"), ChatMessage("In Zürich.", role="assistant")]
    root = project.directory.parent

    def condensing() -> Any:
        return project.as_chat_engine(mode="condense", search_mode=mode)

    def answer(response: Any) -> Any:
        return str(response), scored(response.source_nodes)

    def mcp(question: str) -> Any:
        content = asyncio.run(called(make_server([project]), "search", query=question, mode=mode)).structured_content
        assert content is not None
        return content["passages"], content["confidence"]

    def command(question: str) -> Any:
        result = run("search", "p", question, "--mode", mode, "--root", root, "--json").json
        return result["results"], result["confidence"]

    def response(one: Any) -> Any:
        return scored(one.results), one.confidence, [hit.spotlight for hit in one], one.warnings

    return {
        "retrieve": lambda q: response(project.retrieve(q, mode=mode)),
        "explain": lambda q: str(project.retrieve(q, mode=mode, explain=True).explanations),
        "aretrieve": lambda q: response(asyncio.run(project.aretrieve(q, mode=mode))),
        "retrieve_many": lambda q: [response(one) for one in project.retrieve_many([q], mode=mode)],
        "retriever": lambda q: scored(retriever.retrieve(q)),
        "aretriever": lambda q: scored(asyncio.run(retriever.aretrieve(q))),
        "embedding": lambda q: scored(retriever.retrieve(QueryBundle(q, embedding=embedding))),
        "texts": lambda q: scored(retriever.retrieve(QueryBundle("pump", custom_embedding_strs=[q, "dry"]))),
        "weights": lambda q: scored(retriever.retrieve(WeightedQuery("pump", lexical_texts=((q, 1.0), ("dry", 0.5))))),
        "intents": lambda q: scored(project.as_retriever(mode=mode, intents=True).retrieve(q)),
        "component": lambda q: scored(component.retrieve(q)),
        "acomponent": lambda q: scored(asyncio.run(component.aretrieve(q))),
        "component, embedding": lambda q: scored(component.retrieve(QueryBundle(q, embedding=embedding))),
        "conversational": lambda q: response(conversational.respond(q)),
        "follow-up": lambda q: response(conversational.respond(ConversationQuery(q, history=history))),
        "history": lambda q: response(conversational.respond(ConversationQuery("And?", history=[ChatMessage(q)]))),
        "rewrite": lambda q: response(conversational.respond(ConversationQuery("And?", history=history, rewrite=q))),
        "tools": lambda q: project.document_tools(mode=mode).search(q).model_dump(exclude={"query"}),
        "agno": lambda q: [one.to_dict() for one in ContextualKnowledge(retriever).search(q)],
        "mcp": mcp,
        "command": command,
        "engine": lambda q: answer(project.as_query_engine(mode=mode).query(q)),
        "chat": lambda q: answer(project.as_chat_engine(search_mode=mode).chat(q).grounded),
        "condense": lambda q: answer(condensing().chat(q, history).grounded),
    }


DOORS = (
    *("retrieve", "explain", "aretrieve", "retrieve_many", "retriever", "aretriever", "embedding", "texts", "weights"),
    *("intents", "component", "acomponent", "component, embedding", "conversational", "follow-up", "history"),
    *("rewrite", "tools", "agno", "mcp", "command", "engine", "chat", "condense"),
)


COMPONENTS = ("component", "acomponent", "component, embedding")  # another class for each mode


@pytest.mark.parametrize(
    ("door", "mode"),
    [
        *((door, "hybrid") for door in DOORS),
        *((door, mode) for door in ("retrieve", *COMPONENTS) for mode in MODES if mode != "hybrid"),
    ],
)
def test_the_form_of_a_question_changes_no_result(project: Project, door: str, mode: Mode) -> None:
    ask = doors(project, mode)[door]
    expected = ask(QUESTION)
    assert expected
    for name, form in FORMS.items():
        if door != "mcp" or len(form) <= MAX_CHARACTERS:  # longer arguments are refused
            assert ask(form) == expected, name


def test_a_response_has_the_question_as_it_was_typed(project: Project) -> None:
    for form in FORMS.values():
        assert project.retrieve(form).query == form
        assert project.as_query_engine().query(form).retrieval.query == form  # type: ignore[union-attr]


def test_the_form_of_a_question_changes_no_fusion_of_stock_retrievers() -> None:
    nodes = [TextNode(id_=text, text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=CountingEmbedding())
    stock = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=5)
    for retriever in (SemanticRetriever(index), HybridRetriever([index.as_retriever(), stock], use_async=False)):
        expected = scored(retriever.retrieve(QUESTION))
        for name, form in FORMS.items():
            for hits in (retriever.retrieve(form), asyncio.run(retriever.aretrieve(form))):
                assert scored(hits) == expected, name


@pytest.mark.parametrize("postprocessor", [SpotlightRerank(), ContextWindowPacker(max_tokens=30, compress=True)])
def test_the_form_of_a_question_changes_no_postprocessing(postprocessor: Any) -> None:
    nodes = [NodeWithScore(node=TextNode(id_=text, text=text), score=0.5) for text in TEXTS]

    def results(question: str) -> list[Any]:
        hits = postprocessor.postprocess_nodes(nodes, query_str=question)
        return [(hit.node.get_content(), hit.score) for hit in hits]

    for name, form in FORMS.items():
        assert results(form) == results(QUESTION), name


def test_all_forms_of_a_question_are_embedded_once() -> None:
    embedding = CountingEmbedding()
    embedder = QueryEmbedder(embedding)
    vectors = [embedder.embed([form]) for form in (QUESTION, *FORMS.values())]
    assert embedding.queries == [QUESTION]
    assert all(vector == vectors[0] for vector in vectors)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_query_is_normalised_once_and_for_all(form: str) -> None:
    assert normalise_query(form) == QUESTION
    assert normalise_query(QUESTION) == cut_query(form) == QUESTION
    assert Query.of(form) == Query.of(QUESTION)


@pytest.mark.parametrize(
    ("typed", "searched"),
    [
        ("می\u200cخواهم", "می\u200cخواهم"),  # a joiner changes this word
        ("क्\u200dष", "क्\u200dष"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("pump\u200d 👩\u200d💻\u200d", "pump 👩\u200d💻"),
        ("ﬁle Ａ ①", "ﬁle Ａ ①"),  # compatibility characters are unified by the lexical index only
        ("e\u200b\u0301", "é"),
        ("a\ud800b", "a\ufffdb"),
        ("\u200b \ufeff", ""),
    ],
)
def test_joiners_and_compatibility_characters_are_kept(typed: str, searched: str) -> None:
    assert normalise_query(typed) == searched
    assert normalise_query(searched) == searched


def test_a_query_of_invisible_characters_is_empty(project: Project) -> None:
    from llama_index_contextual.errors import InputError

    for door, ask in doors(project, "hybrid").items():
        if door in ("retrieve", "aretrieve", "retriever", "intents", "conversational", "agno", "engine", "chat"):
            with pytest.raises(InputError, match="The query is empty: ask a question"):
                ask("\u200b \ufeff")
