"""Explain a ranking: the terms of each score, and what each near miss lacks, from the trace of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.retrievers.base import Evidence, Hit, Trace
from llama_index_contextual.retrievers.response import Explanation, Source

NEAR_MISSES = 5
_BEST = "best chunk"
_UNITS = {"semantic": "cosine similarity", "lexical": "BM25"}


@dataclass(frozen=True)
class _Share:
    """The contribution of one ranking to a score.

    Attributes:
        name: Name of the ranking.
        value: The contribution.
        formula: Its calculation, as text; empty if the hit is not in the ranking.
        place: Rank of the hit, from 1; 0 if it is not in the ranking.
        size: Number of hits in the ranking.
    """

    name: str
    value: float
    formula: str
    place: int
    size: int


def explain(trace: Trace, hits: Sequence[Hit], k: int) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations of the k best hits, and those of the next ones with what they lack.

    Args:
        trace: The ranking.
        hits: Its first hits, in order.
        k: Number of results among them.
    """
    explanations = [_explanation(trace, hit, rank) for rank, hit in enumerate(hits, start=1)]
    last = min(k, len(hits))
    near_misses = [_with_reason(trace, explanations, at, last - 1) for at in range(last, len(hits))]
    return explanations[:last], near_misses


def _explanation(trace: Trace, hit: Hit, rank: int) -> Explanation:
    in_text, in_context = _matched_terms(trace, hit.node, hit.evidence)
    return Explanation(
        rank=rank,
        node_id=hit.node.node_id,
        source=Source.of(hit.node),
        score=hit.score,
        arithmetic=_arithmetic(trace, rank - 1),
        semantic=hit.evidence.get("semantic"),
        lexical=hit.evidence.get("lexical"),
        document=hit.evidence.get("document"),
        in_text=in_text,
        in_context=in_context,
        missing=_missing(trace, (*in_text, *in_context)),
    )


def _matched_terms(trace: Trace, node: BaseNode, evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the matched terms in the text or its table head, and those that occur only in the context."""
    terms, lexical = trace.query_terms, evidence.get("lexical")
    if terms is None or lexical is None:
        return (), ()
    text = f"{node.metadata.get(keys.TABLE_HEAD) or ''}\n{node.get_content()}"
    terms_of_text = set(terms.analyzer.terms(text))
    return (
        tuple(term for term in lexical.matched_terms if term in terms_of_text),
        tuple(term for term in lexical.matched_terms if term not in terms_of_text),
    )


def _missing(trace: Trace, matched: Sequence[str]) -> tuple[str, ...]:
    return () if trace.query_terms is None else tuple(t for t in trace.query_terms.counts if t not in matched)


def _arithmetic(trace: Trace, at: int) -> str:
    score = float(trace.hits.scores[at])
    if trace.fusion is None:
        return f"{_UNITS.get(trace.name or '', 'score')} {score:.4f}"
    parts = [f"{share.name} {share.formula}" for share in _shares(trace, at) if share.formula]
    return f"{' + '.join(parts)} = {score:.4f}"


def _shares(trace: Trace, at: int) -> list[_Share]:
    """Return the contributions to the score of the hit at a position; none for the ranking of a single index."""
    fusion, row = trace.fusion, int(trace.hits.rows[at])
    if fusion is None:
        return []
    shares = []
    for number, (part, weight) in enumerate(zip(trace.parts, fusion.weights, strict=True)):
        name, scores = part.name or "fused", part.hits.scores
        places = (part.hits.rows == row).nonzero()[0]
        if len(places) == 0:
            shares.append(_Share(name, 0.0, "", 0, len(scores)))
            continue
        place = int(places[0])
        if fusion.by == "rrf":
            value, formula = weight / (fusion.k + place + 1), f"{weight:.4g} / ({fusion.k:g} + {place + 1})"
        else:
            zero, unit = fusion.scales[number]
            value = weight * ((scores[place] - zero) / unit if unit > 0 else 1.0)
            above = f"{scores[place]:.4f} - {zero:.4f}".replace("- -", "+ ").removesuffix(" - 0.0000")
            formula = f"{weight:.4g} × ({above}) / {unit:.4f}" if unit > 0 else f"{weight:.4g}"
        shares.append(_Share(name, value, formula, place + 1, len(scores)))
    return [*shares, *_share_of_document(trace, at), *_share_of_best(trace, at)]


def _share_of_document(trace: Trace, at: int) -> list[_Share]:
    fusion, support = trace.fusion, trace.support
    if fusion is None or support is None:
        return []
    rank, score, largest = int(support.ranks[at]), float(support.scores[at]), float(support.scores.max(initial=0.0))
    if rank == 0:
        return [_Share("document", 0.0, "", 0, 0)]
    weight = fusion.document_weight
    if fusion.by == "rrf":
        return [_Share("document", weight / (fusion.k + rank), f"{weight:.4g} / ({fusion.k:g} + {rank})", rank, 0)]
    return [_Share("document", weight * score / largest, f"{weight:.4g} × {score:.4f} / {largest:.4f}", rank, 0)]


def _share_of_best(trace: Trace, at: int) -> list[_Share]:
    if trace.fusion is None or trace.best is None or not trace.fusion.sibling_weight:
        return []
    weight, best = trace.fusion.sibling_weight, float(trace.best[at])
    return [_Share(_BEST, weight * best, f"{weight:.4g} × {best:.4f}", 0, 0)]


def _with_reason(trace: Trace, explanations: Sequence[Explanation], at: int, last: int) -> Explanation:
    """Return the explanation of a near miss with the difference from the last result."""
    miss, kept = explanations[at], explanations[last]
    reasons = [f"{kept.score - miss.score:.4f} below result {kept.rank}"]
    shares = list(zip(_shares(trace, at), _shares(trace, last), strict=True))
    if shares:
        mine, theirs = max(shares, key=lambda pair: pair[1].value - pair[0].value)
        if theirs.value > mine.value:
            reasons.append(_deficit(mine, theirs))
    terms_of_kept = {*kept.in_text, *kept.in_context}
    if lacking := [term for term in miss.missing if term in terms_of_kept]:
        reasons.append(f"it lacks {', '.join(lacking)}")
    return replace(miss, why_not="; ".join(reasons))


def _deficit(mine: _Share, theirs: _Share) -> str:
    less = f"{theirs.value - mine.value:.4f} less from the {mine.name}"
    if mine.name == _BEST:
        return f"{less} of its document"
    less = f"{less} ranking"
    if mine.place:
        return f"{less} (rank {mine.place} against {theirs.place})"
    if mine.name == "document":
        return f"{less} (no term of the question in its document's name and opening)"
    return f"{less} (not among its {mine.size} candidates)"
