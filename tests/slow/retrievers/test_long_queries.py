"""Queries of a megabyte: work and memory are bounded, and the response says what was left out."""

from __future__ import annotations

import itertools
import re
import sys
import tracemalloc
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual._utils import text as excerpts
from llama_index_contextual.answering import guards as personal_data
from llama_index_contextual.answering.intent import aspects_of, guess_intent
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.batching import cut_to_input, embedding_tokens
from llama_index_contextual.errors import InputError
from llama_index_contextual.index import variants
from llama_index_contextual.index.analysis import Analyzer, Memory, normalise_query
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.index.numbers import number_matches, numbers_in
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.search.time_words import explicit_times
from tests.slow.retrievers.long_queries import QUERIES
from tests.support.models import CountingEmbedding, ScriptedLLM

MEGABYTE = 1_000_000
READ = 32_000


def words(number: int) -> list[str]:
    """Return distinct words without vowels, which no stemmer changes."""
    return ["".join(letters) for letters in itertools.islice(itertools.product("bdfgklmnpr", repeat=6), number)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that tests share and do not change."""
    config = ProjectConfig.local(context="none", acronym_table={"PU": "Pressure Unit"})
    manager = ProjectManager(tmp_path_factory.mktemp("built"))
    project = manager.create("p", config, embed_model=CountingEmbedding(), llm=ScriptedLLM())
    texts = ["The pump (Pressure Unit, PU) runs dry.", "Close the valve first.", " ".join(words(400))]
    project.ingest([Document(id_=f"{at}", text=text) for at, text in enumerate(texts)])
    return project


def respelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the words whose spelling candidates are computed."""
    tried: list[str] = []
    real = variants.edit_distance_one

    def spellings(word: str) -> set[str]:
        tried.append(word)
        return real(word) if len(word) < 100 else set()

    monkeypatch.setattr(variants, "edit_distance_one", spellings)
    return tried


# ---- terms and spellings ---------------------------------------------------------------------------------------------


def test_spellings_are_made_of_words_of_up_to_24_letters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = respelled(monkeypatch)
    LexicalIndex.build(["The pump runs dry."]).query(f"{'w' * 24} {'v' * 25} {'u' * 2_000}")
    assert tried == ["w" * 24]


def test_spellings_are_made_of_the_first_8_unknown_words_of_a_query_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = respelled(monkeypatch)
    unknown = words(30)
    index = LexicalIndex.build(["An agreement on pumps."])
    for _ in range(2):  # the second time, what was found out before does not count less
        terms = index.query(" ".join(["agreement", *unknown[:7], "pumpz", *unknown[7:], "agrement"]))
        assert "pump" in terms.known
    assert tried == [*unknown[:7], "pumpz"]


def test_of_more_than_256_terms_the_heaviest_are_searched() -> None:
    known = words(300)
    index = LexicalIndex.build([" ".join(known), " ".join(known[:100]), "other"])
    terms = index.query(" ".join(known))
    assert (len(terms.counts), terms.omitted) == (256, 44)
    # The rarer ones, then the first ones; in the order of the query.
    assert list(terms.counts) == [*known[:56], *known[100:]]
    assert set(terms.known) == set(terms.counts)
    weighed = index.query([(" ".join(known[:100]), 2.0), (" ".join(known[100:]), 0.1)])
    assert set(known[:100]) < set(weighed.known)
    unknown = LexicalIndex.build(["pump motor"]).query(" ".join([*known, "pump", "motor"]))
    assert (unknown.known, unknown.omitted) == (("pump", "motor"), 46)


def test_a_response_says_that_terms_were_left_out(built: Project) -> None:
    query = " ".join(words(400))
    expected = "The query has 400 different terms: only the 256 with the largest weights were searched lexically."
    for mode in ("lexical", "hybrid"):
        assert built.retrieve(query, mode=mode).warnings == (expected,)
    assert built.retrieve(query, mode="semantic").warnings == ()
    assert built.retrieve("pump").warnings == ()


# ---- length ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in QUERIES if name != "spaces"])
def test_the_memory_of_a_search_is_bounded_for_a_megabyte_of_anything(built: Project, name: str) -> None:
    query = QUERIES[name](MEGABYTE)
    built.retrieve("pump")
    tracemalloc.start()
    try:
        response = built.retrieve(query, explain=True)
        shown = repr(response), response._repr_html_()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
    assert response.query is query
    searched = len(normalise_query(query))
    if searched > READ:
        assert f"The query has {searched:,} characters: only its beginning, " in response.warnings[0]
    assert max(map(len, shown)) < 30_000


async def test_a_megabyte_of_white_space_is_an_empty_query(built: Project) -> None:
    with pytest.raises(InputError, match="The query is empty: ask a question"):
        await built.aretrieve(QUERIES["spaces"](MEGABYTE))


def test_a_query_is_cut_at_white_space_and_found_by_its_beginning(built: Project) -> None:
    query = f"{' ' * MEGABYTE}pump dry {'valvevalve ' * 4_000}"
    response = built.retrieve(query, mode="lexical")
    assert response[0].source.doc_id == "0"
    assert f"{READ:,}" not in response.warnings[0]
    assert built.retrieve(f"{'pump ' * 6_399}dry", mode="lexical").warnings == ()


async def test_every_way_to_ask_says_that_a_query_was_cut(built: Project) -> None:
    query = "pump " * 10_000
    said = "The query has 49,999 characters: only its beginning, 31,999 characters, was searched."
    retriever = built.as_retriever()
    conversational = ConversationalRetriever(retriever, embed_model=CountingEmbedding())
    bundle = ConversationQuery(query, history=[ChatMessage("Why?"), ChatMessage(query)])
    for response in (
        built.retrieve(query),
        await built.aretrieve(query),
        *built.retrieve_many([query]),
        conversational.respond(bundle),
        await conversational.arespond(bundle),
    ):
        assert response.warnings == (said,)
        assert response.query == query


def test_cached_keys_of_a_long_query_are_short(built: Project) -> None:
    for name in ("letter", "words", "chinese"):
        built.retrieve(QUERIES[name](MEGABYTE))
    indexes = built.state.live.current()
    keys = [*indexes.embedder._cache._entries, *indexes.index.lexical._respelled._entries]
    analyzer = indexes.index.lexical.analyzer
    assert max(map(sys.getsizeof, [*keys, *analyzer._terms_of, *analyzer._query_terms_of])) < 300


def test_long_tokens_are_not_remembered_and_words_of_queries_are_bounded() -> None:
    lengths = Memory(len, 10)
    assert lengths["w" * 100] == 100
    assert dict(lengths) == {}
    analyzer = Analyzer()
    for start in range(0, 60_000, 20_000):
        analyzer.query_terms(" ".join(f"w{at}" for at in range(start, start + 20_000)))
    assert len(analyzer._query_terms_of) <= 20_000


def test_a_text_is_cut_to_what_an_embedding_model_takes() -> None:
    short = "水" * 2_000
    assert cut_to_input(short) is short
    for text in ("pump " * 12_000, "水泵" * 10_000, "w\n" * 20_000, "🦜" * 9_000):
        cut = cut_to_input(text)
        assert text.startswith(cut)
        assert 7_000 < embedding_tokens(cut) <= 8_192


async def test_a_response_says_that_a_query_was_embedded_in_part(built: Project) -> None:
    query = "水" * 20_000
    model = built.embed_model
    assert isinstance(model, CountingEmbedding)
    for response in (built.retrieve(query), await built.aretrieve(query)):
        assert "The query is longer than an embedding model accepts: only its beginning, " in response.warnings[0]
        assert len(model.queries[-1]) < 20_000
    assert not any("embedding" in warning for warning in built.retrieve(query, mode="lexical").warnings)
    given = QueryBundle(query, embedding=model.vector("pump"))
    assert not any("embedding" in warning for warning in built.retrieve(given).warnings)


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_a_model_reads_no_more_of_a_question_than_is_searched(built: Project) -> None:
    llm = ScriptedLLM()
    engine = built.as_query_engine(llm=llm, guards=True, intents=True, reference_date=date(2026, 11, 22))
    query = "pump " * 200_000
    answer: Any = engine.query(query)
    assert "The query has 999,999 characters" in answer.retrieval.warnings[0]
    assert len(answer.retrieval.warnings) == 1
    (prompt,) = llm.history
    assert len(prompt) < 2 * READ


def test_a_conversation_remembers_no_more_of_a_question_than_is_searched(built: Project) -> None:
    llm = ScriptedLLM()
    chat = built.as_chat_engine(llm=llm, mode="condense")
    chat.chat("pump " * 200_000)
    chat.chat("valve " * 200_000)
    assert max(len(message.content or "") for message in chat.chat_history) <= READ
    assert max(map(len, llm.history)) < 4 * READ


def test_time_words_are_made_explicit_however_many_there_are() -> None:
    times = 3_000
    said = explicit_times("today " * times, date(2026, 11, 22))
    assert said == "today (22 November 2026) " * times


def test_the_intent_of_a_hostile_question_is_found_at_once() -> None:
    assert guess_intent("what is the weather" + " in a" * 40 + "\nx").intent == "factual"
    assert guess_intent("what is the weather like today in Paris in May").intent == "out_of_scope"
    assert guess_intent("write me a poem" + "!" * MEGABYTE + "\nx").tier in ("words", "default", "pattern")


SIDES = {
    "x" + " " * MEGABYTE + "vs": [],
    "compare" + " " * MEGABYTE + "x": [],
    "Well, A \n vs.  B?": ["A", "B"],
    "Compare debit  cards\nwith credit cards.": ["debit cards", "credit cards"],
}


def test_the_sides_of_a_comparison_are_found_at_once() -> None:
    assert {question: list(aspects_of(question)) for question in SIDES} == SIDES


def test_numbers_that_are_too_long_are_not_figures() -> None:
    digits = "9" * 1_000_001
    ((match, _),) = number_matches(f"{digits} and 7")
    assert match[0] == "7"
    assert numbers_in(f"{digits} and 7") == {7}


_EMAIL_BEFORE = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)+")


@given(st.text("ab@.-! é", max_size=30))
def test_addresses_are_found_as_a_slower_pattern_finds_them(text: str) -> None:
    found = [match.span() for match in personal_data._EMAIL.finditer(text)]
    assert found == [match.span() for match in _EMAIL_BEFORE.finditer(text)]


def test_an_excerpt_looks_for_a_bounded_number_of_terms(built: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = re.finditer

    def finditer(pattern: str, *arguments: Any) -> Any:
        looked.append(pattern)
        return real(pattern, *arguments)

    response = built.retrieve(" ".join(words(2_000)), mode="semantic")
    monkeypatch.setattr(excerpts.re, "finditer", finditer)
    response[0].excerpt(response.query, 40)
    assert len(looked) <= 257
