"""The best results within a token budget, in reading order; compressed passages keep their offsets."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.metadata import excluded_llm_keys
from llama_index_contextual.postprocessor import SEPARATOR_TOKENS, ContextWindowPacker, best_run, split_sentences
from llama_index_contextual.search.results import RetrievedChunk
from tests.integration.postprocessor.documents import chunks_of, cut_documents, hit

TEXT = "Alpha beta. Gamma delta. Epsilon zeta. Eta theta."
TOUCHING = [(0, 12), (12, 25), (25, 39), (39, 49)]


def tokens(results: list[NodeWithScore]) -> int:
    sizes = [count_tokens(result.node.get_content(metadata_mode=MetadataMode.LLM)) for result in results]
    return sum(sizes) + SEPARATOR_TOKENS * max(0, len(sizes) - 1)


# ---- which and in which order --------------------------------------------------------------------------------------


async def test_the_best_that_fit_are_kept_and_smaller_ones_fill_the_rest() -> None:
    large, small = "word " * 50, "few words"
    hits = [hit(TextNode(id_=i, text=t), s) for i, t, s in (("a", large, 0.9), ("b", large, 0.8), ("c", small, 0.1))]
    packer = ContextWindowPacker(max_tokens=count_tokens(large) + SEPARATOR_TOKENS + count_tokens(small))
    packed = packer.postprocess_nodes(hits)
    assert [r.node.node_id for r in packed] == ["a", "c"]
    assert await packer.apostprocess_nodes(hits) == packed
    assert packer.postprocess_nodes([]) == []


def test_a_context_that_an_llm_wrote_counts_and_a_structural_line_does_not() -> None:
    written = "Of the annual report for the year."
    size, context = count_tokens("one two three"), count_tokens(written)
    for metadata, needed in (
        ({"context": written, "context_source": "llm"}, size + context),
        ({"context": f"A title.\n{written}", "context_source": "llm", "context_written_at": 9}, size + context),
        ({"context": written, "context_source": "structural"}, size),
    ):
        node = TextNode(text="one two three", metadata=metadata, excluded_llm_metadata_keys=excluded_llm_keys())
        assert ContextWindowPacker(max_tokens=needed).postprocess_nodes([hit(node, 1.0)])[0].node == node
        with pytest.raises(ConfigurationError, match="no room for a sentence"):
            ContextWindowPacker(max_tokens=needed - 1).postprocess_nodes([hit(node, 1.0)])


def test_the_budget_is_used_to_the_last_token() -> None:
    hits = [hit(TextNode(id_=i, text="one two three"), s) for i, s in (("a", 0.9), ("b", 0.8))]
    both = 2 * count_tokens("one two three") + SEPARATOR_TOKENS
    assert len(ContextWindowPacker(max_tokens=both).postprocess_nodes(hits)) == 2
    assert len(ContextWindowPacker(max_tokens=both - 1).postprocess_nodes(hits)) == 1


def test_passages_of_a_document_come_in_its_order_and_documents_by_their_best_result() -> None:
    one, other = chunks_of(TEXT, TOUCHING, doc_id="one"), chunks_of(TEXT, TOUCHING, doc_id="other")
    hits = [hit(other[3], 0.9), hit(one[2], 0.8), hit(other[0], 0.3), hit(one[1], 0.2)]
    passages = ContextWindowPacker().postprocess_nodes(hits)
    assert [r.node.node_id for r in passages] == ["other-0", "other-3", "one-1", "one-2"]


def test_the_score_decides_because_a_reranker_writes_nothing_else() -> None:
    reranked = [
        RetrievedChunk(node=TextNode(id_=name, text="one two three"), score=score, relevance=1 - score)
        for name, score in (("a", 0.1), ("b", 0.9))
    ]
    assert [r.node.node_id for r in ContextWindowPacker(max_tokens=4).postprocess_nodes(reranked)] == ["b"]


@pytest.mark.parametrize("score", [0.5, None])
def test_equal_scores_or_none_keep_the_given_order(score: float | None) -> None:
    hits = [NodeWithScore(node=TextNode(id_=i, text="one two three"), score=score) for i in "cab"]
    assert [r.node.node_id for r in ContextWindowPacker().postprocess_nodes(hits)] == ["c", "a", "b"]


# ---- compression ---------------------------------------------------------------------------------------------------


def test_nothing_is_compressed_into_too_little_room() -> None:
    small, large = TextNode(id_="a", text="A few words here."), TextNode(id_="b", text="Some words here. " * 100)
    packer = ContextWindowPacker(max_tokens=20, compress=True, min_tokens=21)
    assert [r.node.node_id for r in packer.postprocess_nodes([hit(small, 0.9), hit(large, 0.1)])] == ["a"]


# ---- when nothing fits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_the_best_result_is_cut_to_the_sentences_that_answer_if_none_fits(compress: bool) -> None:
    text = "The plant opened in 1998. " * 20 + "Error TS-999 means a dry pump. Close valve V2. " + "Nothing more. " * 20
    best, other = (chunks_of(text, [(0, len(text))], doc_id=name, token_count=999)[0] for name in ("best", "other"))
    packer = ContextWindowPacker(max_tokens=20, compress=compress)
    (passage,) = packer.postprocess_nodes([hit(other, 0.1), hit(best, 0.9)], query_str="What does error TS-999 mean?")
    assert passage.node.ref_doc_id == "best"
    assert passage.node.text == "Error TS-999 means a dry pump."
    assert text[passage.node.start_char_idx : passage.node.end_char_idx] == passage.node.text
    assert passage.node.metadata["token_count"] == count_tokens(passage.node.text)
    assert best.text == text


def test_if_no_sentence_fits_the_error_names_the_budget() -> None:
    text = "One word. " + "many words " * 50 + "of a pump"
    (node,) = chunks_of(text, [(0, len(text))])
    with pytest.raises(ConfigurationError, match="budget of 3 tokens has no room for a sentence") as raised:
        ContextWindowPacker(max_tokens=3).postprocess_nodes([hit(node)], query_str="pump")
    assert raised.value.setting == "answer_tokens"


def test_sentences_are_found_without_their_white_space() -> None:
    text = "  One is here.  Two is there.\n\n- three\n- four\n"
    assert [text[a:b] for a, b in split_sentences(text)] == ["One is here.", "Two is there.", "- three", "- four"]


@pytest.mark.parametrize(
    ("text", "query", "room", "run"),
    [
        (  # rare words decide, and the shortest run that has them
            "The pump runs. The pump stops. The pump leaks oil. The pump is red. The valve is red.",
            "Does the pump leaks?",
            30,
            "The pump leaks oil.",
        ),
        ("First words. Second words. Third words.", "zebra", 8, "First words. Second words."),  # the beginning
        (
            "本合同自签署之日起生效。任何一方可提前三十日书面通知解除合同。价格另行约定。",
            "如何解除合同？",
            20,
            "任何一方可提前三十日书面通知解除合同。",
        ),
        ("word " * 100 + ".", "word", 10, None),
        ("", "word", 10, None),
    ],
)
def test_the_best_run_has_the_rare_words_of_the_query(text: str, query: str, room: int, run: str | None) -> None:
    found = best_run(text, query, room)
    assert (found and text[slice(*found)]) == run


# ---- as a LlamaIndex component -------------------------------------------------------------------------------------


def test_it_survives_serialisation() -> None:
    packer = ContextWindowPacker(max_tokens=123, compress=True)
    assert ContextWindowPacker.from_dict(packer.to_dict()).to_dict() == packer.to_dict()


@pytest.mark.parametrize("field", ["max_tokens", "min_tokens"])
def test_a_budget_is_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ContextWindowPacker(**{field: 0})


# ---- for every document --------------------------------------------------------------------------------------------


@given(cut_documents(), cut_documents("other"), st.integers(1, 40), st.booleans(), st.data())
def test_the_budget_is_not_exceeded_and_every_passage_is_the_documents_text(
    one: tuple[str, list[TextNode]], other: tuple[str, list[TextNode]], budget: int, compress: bool, data: st.DataObject
) -> None:
    texts = {"doc": one[0], "other": other[0]}
    nodes = [*one[1], *other[1]]
    hits = [hit(node, data.draw(st.floats(0, 1))) for node in data.draw(st.permutations(nodes))]
    packer = ContextWindowPacker(max_tokens=budget, compress=compress, min_tokens=1)
    query = data.draw(st.sampled_from(["ab", "漢 de", "x"]))
    try:
        passages = packer.postprocess_nodes(hits, query_str=query)
    except ConfigurationError:
        enough = tokens([max(hits, key=lambda h: h.score or 0.0)])
        assert enough > budget
        assert packer.model_copy(update={"max_tokens": enough}).postprocess_nodes(hits, query_str=query)
        return
    assert bool(passages) == bool(hits)
    assert tokens(passages) <= budget
    whole = "\n\n".join(r.node.get_content(metadata_mode=MetadataMode.LLM) for r in passages)
    assert count_tokens(whole) <= budget
    for result in passages:
        node = result.node
        assert isinstance(node, TextNode)
        assert texts[node.ref_doc_id or ""][node.start_char_idx : node.end_char_idx] == node.text
    if not compress:
        best = max(hits, key=lambda h: h.score or 0.0, default=None)
        if best is not None and tokens([best]) <= budget:
            assert best.node.node_id in {r.node.node_id for r in passages}
    for doc_id in texts:
        starts = [getattr(r.node, "start_char_idx", 0) for r in passages if r.node.ref_doc_id == doc_id]
        assert starts == sorted(starts)


@given(st.lists(st.lists(st.sampled_from(["ab", "cd", "ef", "gh"]), max_size=4), max_size=7), st.integers(1, 25))
def test_the_best_run_is_the_best_of_all_runs(words: list[list[str]], budget: int) -> None:
    text = " ".join(" ".join(["Xx", *sentence]) + "." for sentence in words)
    query, spans = "ab cd ef", split_sentences(text)
    stored = [{word for word in query.split() if word in text[start:end]} for start, end in spans]
    weight = {word: math.log(1 + len(spans) / sum(word in row for row in stored)) for word in set().union(*stored)}
    sizes = [count_tokens(text[a:b]) for a, b in pairwise([*(start for start, _ in spans), len(text)])]
    runs = []
    for first in range(len(spans)):
        for last in range(first, len(spans)):
            tokens = sum(sizes[first : last + 1])
            value = round(math.fsum(weight[word] for word in set().union(*stored[first : last + 1])), 9)
            if tokens <= budget and value:
                runs.append((value, -tokens, -first, (spans[first][0], spans[last][1])))
    result = best_run(text, query, budget)
    if weight:
        assert result == (max(runs)[3] if runs else None)
