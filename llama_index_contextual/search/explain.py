"""Explain a ranking: the components of each score, matched and missing terms, and the reasons for near misses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_index_contextual import metadata as keys
from llama_index_contextual.search.rank import Ranking
from llama_index_contextual.search.response import BaseHit, Explanation

if TYPE_CHECKING:
    from llama_index_contextual.search.rerank import Reranked

NEAR_MISSES = 5
_UNITS = {"semantic": "cosine similarity", "lexical": "BM25"}


@dataclass(frozen=True)
class _Share:
    """One component of a score, such as the contribution of a ranking.

    Attributes:
        name: Name of the component.
        value: The number that it adds to the score.
        formula: Calculation of the value, as text; empty if the component does not affect the score of the hit.
        place: Rank of the hit in the ranking, starting at 1; 0 if the hit has no rank.
    """

    name: str
    value: float
    formula: str
    place: int = 0


def explain(ranking: Ranking, hits: Sequence[BaseHit], k: int) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations of the k best hits, and of the other hits, which are near misses.

    The explanation of a near miss includes the reasons why it ranks below the last result.

    Args:
        ranking: The ranking.
        hits: The first hits of the ranking, in order.
        k: Number of results among the hits.
    """
    explanations = [_explanation(ranking, hit) for hit in hits]
    last = min(k, len(hits))
    near_misses = [_with_reason(ranking, explanations, at, last - 1) for at in range(last, len(hits))]
    return explanations[:last], near_misses


def explain_hit(ranking: Ranking, hits: Sequence[BaseHit], k: int) -> Explanation:
    """Return the explanation of the last of the given hits, with the reasons why it is not among the k best.

    Args:
        ranking: The ranking.
        hits: The first hits of the ranking, in order.
        k: Number of results.
    """
    at, last = len(hits) - 1, min(k, len(hits)) - 1
    explanations = {position: _explanation(ranking, hits[position]) for position in {at, last}}
    return explanations[at] if at <= last else _with_reason(ranking, explanations, at, last)


def explain_reranked(
    explanations: Sequence[Explanation], reranked: Reranked, k: int
) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations of the k best hits after reranking, and of the other hits.

    Args:
        explanations: Explanations of at least all reranked hits, in the original order of the hits.
        reranked: The hits in the order chosen by the reranker.
        k: Number of results among the hits.
    """
    by_id = {one.node_id: one for one in explanations}
    moved = []
    for rank, hit in enumerate(reranked.hits, start=1):
        decision, last = reranked.decisions[hit.node_id], reranked.hits[min(rank, k) - 1]
        below = reranked.decisions[last.node_id].reason
        why_not = None if rank <= k else f"reranked below result {k}: {decision.reason}; result {k}: {below}"
        moved.append(replace(by_id[hit.node_id], rank=rank, score=hit.get_score(), reranking=decision, why_not=why_not))
    for node_id, decision in reranked.decisions.items():
        if decision.after is None:
            rank, why_not = len(moved) + 1, str(decision)
            moved.append(replace(by_id[node_id], rank=rank, score=decision.score, reranking=decision, why_not=why_not))
    kept = min(k, len(reranked.hits))
    return moved[:kept], moved[kept:]


def _explanation(ranking: Ranking, hit: BaseHit) -> Explanation:
    in_text, in_context, in_structure = _matched_terms(ranking, hit)
    return Explanation(
        rank=hit.rank,
        node_id=hit.node_id,
        source=hit.source,
        score=hit.get_score(),
        arithmetic=_arithmetic(ranking, hit.rank - 1),
        shares={share.name: float(share.value) for share in _shares(ranking, hit.rank - 1) if share.formula},
        semantic=hit.semantic,
        lexical=hit.lexical,
        document=hit.document,
        in_text=in_text,
        in_context=in_context,
        in_structure=in_structure,
        variants=_variants(ranking, (*in_text, *in_context, *in_structure)),
        missing=_missing(ranking, (*in_text, *in_context, *in_structure)),
    )


def _matched_terms(ranking: Ranking, hit: BaseHit) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the query's terms that a hit contains, in three groups.

    1. The terms in the text or the column headers.
    2. The other terms in the context, except those of the third group.
    3. If the context has a structural line and a written part, the other terms that occur only in the structural line.
    """
    if ranking.terms is None or hit.lexical is None:
        return (), (), ()
    terms_of = ranking.terms.analyzer.terms
    structure, written = keys.context_parts(hit.metadata)
    of_text = set(terms_of(f"{hit.metadata.get(keys.TABLE_HEAD) or ''}\n{hit.text}"))
    of_structure = set(terms_of(structure) if written else ())
    of_structure -= set(terms_of(written))
    rest = [term for term in hit.lexical.matched_terms if term not in of_text]
    return (
        tuple(term for term in hit.lexical.matched_terms if term in of_text),
        tuple(term for term in rest if term not in of_structure),
        tuple(term for term in rest if term in of_structure),
    )


def _missing(ranking: Ranking, matched: Sequence[str]) -> tuple[str, ...]:
    """Return the query's terms that a hit contains neither as they are nor as a variant."""
    if ranking.terms is None:
        return ()
    variants = ranking.terms.variants
    covered = {variants[term].of for term in matched if term in variants and variants[term].kind != "spelling"}
    return tuple(t for t in ranking.terms.counts if t not in matched and t not in covered and t not in variants)


def _variants(ranking: Ranking, matched: Sequence[str]) -> dict[str, str]:
    """Return those of the matched terms that were searched as a variant of a term of the query."""
    variants = {} if ranking.terms is None else ranking.terms.variants
    return {term: f"{variants[term].kind} of {variants[term].of}" for term in matched if term in variants}


def _arithmetic(ranking: Ranking, at: int) -> str:
    score = float(ranking.hits.scores[at])
    parts = [f"{share.name} {share.formula}" for share in _shares(ranking, at) if share.formula]
    if ranking.fusion is None:
        added = sum(share.value for share in _shares(ranking, at))
        parts = [f"{_UNITS[ranking.lists[0].name]} {score - added:.4f}", *parts]
    if len(parts) == 1 and ranking.fusion is None:
        return parts[0]
    return f"{' + '.join(parts)} = {score:.4f}"


def _shares(ranking: Ranking, at: int) -> list[_Share]:
    """Return the contributions to the score of the hit at position `at`.

    If only one index was ranked, return only the contribution of the best sentence or row.
    """
    fusion, row = ranking.fusion, int(ranking.hits.rows[at])
    if fusion is None:
        return _share_of_spotlight(ranking, at)
    shares = []
    for ranked, weight in zip(ranking.lists, fusion.weights, strict=True):
        hits = ranked.hits.first(fusion.candidates)
        name, scores = ranked.name, hits.scores
        places = (hits.rows == row).nonzero()[0]
        if len(places) == 0:
            shares.append(_Share(name, 0.0, ""))
            continue
        place = int(places[0])
        if fusion.by == "rrf":
            value, formula = weight / (fusion.rrf_k + place + 1), f"{weight:.4g} / ({fusion.rrf_k:g} + {place + 1})"
        else:
            zero, unit = ranked.scale
            value = weight * ((scores[place] - zero) / unit if unit > 0 else 1.0)
            above = f"{scores[place]:.4f} - {zero:.4f}".replace("- -", "+ ").removesuffix(" - 0.0000")
            formula = f"{weight:.4g} × ({above}) / {unit:.4f}" if unit > 0 else f"{weight:.4g}"
        shares.append(_Share(name, value, formula, place + 1))
    return [
        *shares,
        *_share_of_document(ranking, at),
        *_shared_terms(ranking, at),
        *_share_of_best(ranking, at),
        *_share_of_spotlight(ranking, at),
    ]


def _share_of_document(ranking: Ranking, at: int) -> list[_Share]:
    fusion, support = ranking.fusion, ranking.support
    if fusion is None or support is None:
        return []
    rank, score, largest = int(support.ranks[at]), float(support.scores[at]), float(support.scores.max(initial=0.0))
    if rank == 0:
        return [_Share("document", 0.0, "")]
    weight = ranking.document_weight
    if fusion.by == "rrf":
        formula = f"{weight:.4g} / ({fusion.rrf_k:g} + {rank})"
        return [_Share("document", weight / (fusion.rrf_k + rank), formula, rank)]
    formula = f"{weight:.4g} × ({score:.4f} / {largest:.4f})²"
    return [_Share("document", weight * (score / largest) ** 2, formula, rank)]


def _shared_terms(ranking: Ranking, at: int) -> list[_Share]:
    """Return the deduction from a hit's score for terms that also occur elsewhere in its document.

    Return an empty list if no hit in the ranking has such a deduction.
    """
    if ranking.shared_terms is None or not ranking.shared_terms.any():
        return []
    value = -float(ranking.shared_terms[at])
    return [_Share("shared terms", value, f"({value:.4f})" if value else "")]


def _share_of_best(ranking: Ranking, at: int) -> list[_Share]:
    if ranking.best is None:
        return []
    best = float(ranking.best[at])
    return [_Share("best chunk", best, f"({best:.4f})")]


def _share_of_spotlight(ranking: Ranking, at: int) -> list[_Share]:
    """Return the contribution of the best sentence or row to a hit's score.

    Return an empty list if no hit in the ranking has such a contribution.
    """
    if ranking.spotlight is None or not ranking.spotlight.any():
        return []
    words, meaning = ranking.spotlight[at].tolist() if at < len(ranking.spotlight) else (0.0, 0.0)
    formula = f"({words:.4f} + {meaning:.4f})" if words or meaning else ""  # by words, by meaning
    return [_Share("best sentence", words + meaning, formula)]


def _with_reason(
    ranking: Ranking, explanations: Sequence[Explanation] | Mapping[int, Explanation], at: int, last: int
) -> Explanation:
    """Add the reasons why a near miss ranks below the last result to its explanation, and return the explanation."""
    miss, hit = explanations[at], explanations[last]
    reasons = [f"{hit.score - miss.score:.4f} below result {hit.rank}"]
    shares = list(zip(_shares(ranking, at), _shares(ranking, last), strict=True))
    if shares:
        mine, theirs = max(shares, key=lambda pair: pair[1].value - pair[0].value)
        if theirs.value > mine.value:
            at_rank = f"rank {mine.place} against {theirs.place}" if mine.place else "not among its candidates"
            ranking_of_both = f" ranking ({at_rank})" if theirs.place else ""
            reasons.append(f"{theirs.value - mine.value:.4f} less from the {mine.name}{ranking_of_both}")
    terms_of_hit = {*hit.in_text, *hit.in_context, *hit.in_structure}
    if lacking := [term for term in miss.missing if term in terms_of_hit]:
        reasons.append(f"missing terms: {', '.join(lacking)}")
    return replace(miss, why_not="; ".join(reasons))
