"""Follow-up questions: the blended texts, their weights, and queries that are not changed."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import QueryBundle

from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.retrievers import HybridRetriever, LexicalRetriever
from llama_index_contextual.retrievers.base import specificity_of
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever, ConversationQuery
from llama_index_contextual.search.response import QueryBlend
from tests.integration.retrievers.corpus import FixedRetriever, both_legs, hits, passages, ranking
from tests.support.models import CountingEmbedding


def said(*texts: str) -> list[ChatMessage]:
    """Return messages of the user and the assistant by turns, the user first."""
    return [ChatMessage(role="assistant" if at % 2 else "user", content=text) for at, text in enumerate(texts)]


def ids(found) -> list[str]:  # type: ignore[no-untyped-def]
    return [chunk.node_id for chunk in found]


def lexical() -> LexicalRetriever:
    return LexicalRetriever.from_defaults(nodes=passages())


def hybrid(model: CountingEmbedding) -> HybridRetriever:
    return HybridRetriever(list(both_legs(model)))


# ---- weighted terms --------------------------------------------------------------------------------------------------


def scores(*texts: tuple[str, float]) -> dict[str, float]:
    """Return the BM25 score of every hit for weighted texts."""
    return dict(ranking(lexical(), ConversationQuery("", lexical_texts=texts), 10))


def test_terms_count_with_their_weight_and_a_term_of_two_texts_with_the_sum() -> None:
    pump, dry = scores(("pump", 1.0)), scores(("dry", 1.0))
    found = scores(("pump", 1.0), ("dry pump", 0.25), ("revenue", 0.0))
    assert found == pytest.approx({key: 1.25 * pump[key] + 0.25 * dry.get(key, 0.0) for key in pump})
    assert scores(("dry pump pump", 1.0)) == pytest.approx(dict(ranking(lexical(), "dry pump pump", 10)))


# ---- first turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["pump", QueryBundle("pump"), ConversationQuery("pump")], ids=type)
def test_a_question_without_history_is_not_changed(query: object) -> None:
    model = CountingEmbedding()
    plain = hybrid(model).retrieve("pump")
    asked = len(model.queries)
    found = ConversationalRetriever(hybrid(model), embed_model=model).respond(query)  # type: ignore[arg-type]
    assert [(c.node_id, c.score) for c in found] == [(h.node_id, h.score) for h in plain]
    assert found.blend is None
    assert model.queries[asked:] == ["pump"]


# ---- the lexical leg -------------------------------------------------------------------------------------------------


def test_a_follow_up_finds_the_subject_of_previous_questions() -> None:
    retriever = ConversationalRetriever(lexical())
    assert ids(retriever.respond("And why?")) == []
    follow_up = ConversationQuery("And why?", history=said("We see TS-999.", "I see."))
    assert ids(retriever.respond(follow_up))[0] == "dry"


def test_the_weights_of_the_texts_are_in_the_response() -> None:
    history = said("one pump", "answer one", "two", "answer two", "three", "answer three", "four", "last answer")
    found = ConversationalRetriever(lexical()).respond(ConversationQuery("five", history=history))
    assert found.blend is not None
    assert found.blend.lexical == (("five", 1.0), ("two", 0.1), ("three", 0.1), ("four", 0.1), ("last answer", 0.15))
    assert found.to_dict()["blend"]["lexical"][0] == ("five", 1.0)


def test_the_terms_of_a_long_answer_share_their_weight() -> None:
    answer = " ".join(f"word{number}" for number in range(80))  # each is a compound of three terms: 80 + 1 + 80
    retriever = ConversationalRetriever(lexical(), weights=BlendWeights(answer_terms=0.5, answer_total=4.0))
    blend = retriever.respond(ConversationQuery("q", history=said("a", answer))).blend
    assert blend is not None
    assert blend.lexical[-1][1] == pytest.approx(4.0 / 161)


# ---- the embedding ---------------------------------------------------------------------------------------------------


class Axes(CountingEmbedding):
    """Embeds a text that is a number as that axis, three long; any other as zero."""

    def vector(self, text: str) -> list[float]:
        row = [0.0] * 4
        if text.isdigit():
            row[int(text)] = 3.0
        return row


def embedding_for(query: ConversationQuery, **weights: float) -> list[float]:
    inner = FixedRetriever([])
    ConversationalRetriever(inner, embed_model=Axes(), weights=BlendWeights(**weights)).retrieve(query)  # type: ignore[arg-type]
    return list(inner.queries[0].embedding or [])


@pytest.mark.parametrize(
    ("question", "history", "weights", "blend"),
    [
        ("0", ["1", "…", "2", "…"], {}, [2, 0.5, 0.5, 0]),  # twice the question plus the mean of those before
        ("0", ["3", "", "1", "", "1", "", "2"], {}, [2, 2 / 3, 1 / 3, 0]),  # the last three
        ("0", ["1"], {"question": 1.0, "history": 1.0}, [1, 1, 0, 0]),
        ("0", ["no number"], {}, [1, 0, 0, 0]),
        ("?", ["!"], {}, [0, 0, 0, 0]),
    ],
)
def test_the_embedding_is_the_weighted_mean_of_the_questions_normalised(
    question: str, history: list[str], weights: dict[str, float], blend: list[float]
) -> None:
    found = embedding_for(ConversationQuery(question, history=said(*history)), **weights)
    assert found == pytest.approx([value / (math.hypot(*blend) or 1.0) for value in blend])


def test_a_given_embedding_of_the_query_is_kept() -> None:
    query = ConversationQuery("0", history=said("1"))
    query.embedding = [0.0, 0.0, 0.0, 1.0]
    assert embedding_for(query) == [0.0, 0.0, 0.0, 1.0]


def test_both_legs_of_a_hybrid_search_are_blended_and_fetch_once() -> None:
    model = CountingEmbedding()
    query = ConversationQuery("And the code?", history=said("Does the pump run dry?", "It may."))
    found = ConversationalRetriever(hybrid(model), embed_model=model).respond(query)
    assert found[0].node_id == "dry"
    assert found[0].lexical is not None
    assert {"pump", "run"} <= set(found[0].lexical.matched_terms)
    # They are embedded at the same time.
    assert sorted(model.queries[-2:]) == ["And the code?", "Does the pump run dry?"]


def test_a_failing_model_is_named_in_the_error() -> None:
    class Refusing(CountingEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            raise PermissionError("no")

    retriever = ConversationalRetriever(lexical(), embed_model=Refusing())
    with pytest.raises(ModelError, match="counting"):
        retriever.respond(ConversationQuery("a", history=said("b")))


def test_a_question_that_was_embedded_before_is_not_embedded_again() -> None:
    model = CountingEmbedding()
    retriever = ConversationalRetriever(FixedRetriever([]), embed_model=model)
    retriever.retrieve(ConversationQuery("second", history=said("first", "")))
    retriever.retrieve(ConversationQuery("third", history=said("first", "", "second", "")))
    assert sorted(model.queries) == ["first", "second", "third"]


# ---- how much the conversation counts ------------------------------------------------------------------------------


def test_specificity_is_the_idf_of_the_terms_that_are_known_over_the_logarithm_of_the_passages() -> None:
    texts = ["alpha beta", "alpha gamma", "alpha delta", "alpha"]
    index = LexicalIndex.build(texts)
    alpha, beta = math.log1p(0.5 / 4.5), math.log1p(3.5 / 1.5)
    assert index.specificity("alpha beta beta nowhere") == pytest.approx((alpha + beta) / math.log(5))
    assert index.specificity("") == 0.0
    assert LexicalIndex.build([]).specificity("alpha") == 0.0
    assert specificity_of(hybrid(CountingEmbedding()), "pump") == lexical().specificity("pump")
    assert specificity_of(FixedRetriever([]), "pump") is None


class Known(FixedRetriever):
    """A retriever with a fixed specificity for every question."""

    def __init__(self, found: float) -> None:
        super().__init__([])
        self._found = found

    def specificity(self, text: str) -> float:
        return self._found


@pytest.mark.parametrize(("specificity", "share"), [(0.0, 1.0), (1.5, 1.0), (1.75, 0.75), (2.25, 0.25)])
def test_the_more_specific_a_question_the_less_the_conversation_counts(specificity: float, share: float) -> None:
    # 2 * (1, 0, 0, 0) + share * (0, 1, 0, 0)
    inner = Known(specificity)
    found = ConversationalRetriever(inner, embed_model=Axes()).respond(ConversationQuery("0", history=said("1", "2")))
    assert found.blend is not None
    assert found.blend.embedded == (("0", 2.0), ("1", share))
    assert found.blend.lexical == (("0", 1.0), ("1", pytest.approx(0.1 * share)), ("2", pytest.approx(0.15 * share)))
    length = math.hypot(2.0, share)
    assert inner.queries[0].embedding == pytest.approx([2.0 / length, share / length, 0.0, 0.0])


def test_a_question_that_stands_alone_is_not_changed() -> None:
    inner = Known(2.5)
    query = ConversationQuery("0", history=said("1", "2"))
    assert ConversationalRetriever(inner, embed_model=Axes()).respond(query).blend is None
    assert inner.queries == [query]
    always = ConversationalRetriever(inner, embed_model=Axes(), weights=BlendWeights(alone=math.inf))
    assert always.respond(query).blend is not None


# ---- rewritten questions ----------------------------------------------------------------------------


def test_a_rewritten_question_is_searched_alone_and_shown_in_the_response() -> None:
    inner = FixedRetriever([])
    query = ConversationQuery("Why?", history=said("Does it run dry?"), rewrite="Why does the pump run dry?")
    found = ConversationalRetriever(inner, embed_model=Axes()).respond(query)
    assert inner.queries == [QueryBundle("Why does the pump run dry?")]
    assert found.query == "Why?"
    assert found.blend is not None
    assert (found.blend.rewritten, found.blend.embedded) == ("Why does the pump run dry?", ())


def test_a_search_does_not_change_the_query() -> None:
    query = ConversationQuery("Why?", history=said("TS-999"))
    ConversationalRetriever(FixedRetriever(hits(t=1.0)), embed_model=Axes()).retrieve(query)
    assert (query.lexical_texts, query.embedding) == ((), None)


# ---- the day on which is asked ---------------------------------------------------------------------------------------

DAY = date(2026, 11, 22)


@pytest.mark.parametrize("day", [DAY, lambda: DAY])
def test_time_words_are_searched_with_their_dates_and_the_response_shows_them(day: Any) -> None:
    plain = FixedRetriever(hits(a=1.0))
    retriever = ConversationalRetriever(plain, reference_date=day)
    found = retriever.respond("Costs last year?")
    assert (found.query, found.blend) == ("Costs last year?", QueryBlend(rewritten="Costs last year (2025)?"))
    assert retriever.respond(query := ConversationQuery("Costs?")).blend is None
    assert [query.query_str for query in plain.queries] == ["Costs last year (2025)?", "Costs?"]
    assert plain.queries[1] is query


def test_time_words_of_a_follow_up_and_of_a_rewritten_question_have_dates_too() -> None:
    retriever = ConversationalRetriever(FixedRetriever(hits(a=1.0)), reference_date=DAY)
    history = [ChatMessage("What did it cost?")]
    blend = retriever.respond(ConversationQuery("And last year?", history=history)).blend
    assert blend is not None
    assert blend.lexical[0] == ("And last year (2025)?", 1.0)
    blend = retriever.respond(ConversationQuery("And?", history=history, rewrite="Costs this year?")).blend
    assert blend == QueryBlend(rewritten="Costs this year (2026)?")
