"""Choose the limits of relevance and confidence for a project from the user's own questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import Mode
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import ResultChunk, require_files
from llama_index_contextual.evaluation.run import HasRetriever, Questions, as_questions
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.retrievers.base import respond_of
from llama_index_contextual.search.confidence import MODELS
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.search.search import sure_results

LEAST = 30
"""Minimum number of pieces of evidence among the results; with fewer, the limits would depend on chance."""

FIRST, KEPT_FIRST, KEPT = 5, 0.97, 0.90
"""The share of the evidence among the first five results, and among all results, that a limit of relevance keeps."""

TOP_K = 20
"""Number of results that are retrieved for a question."""

LOW = 0.05
"""Maximum share of the questions whose confidence may be "low"."""

_STEPS = np.arange(1, 201) / 1_000  # limits of relevance that are tried


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The limits for a project, and what they would have kept of the results for the questions.

    Attributes:
        questions: Number of questions.
        evidence: Number of pieces of evidence among the results.
        min_relevance: The limit of relevance; see the setting of this name.
        kept_first: Share of the evidence among the first five results that is kept.
        kept: Share of the evidence among all results that is kept.
        results: Mean number of results per question, without the limit.
        shown: Mean number of results per question, with the limit.
        nothing: Number of questions without a result, with the limit.
        min_confidence: The limit of the level "low", or None if the default keeps its promise for these questions; see
            the setting of this name. The questions must have answers in the documents.
        low: Share of the questions that were rated "low" by the default limit.
        high: Share of the questions that were rated "high".
    """

    questions: int
    evidence: int
    min_relevance: float
    kept_first: float
    kept: float
    results: float
    shown: float
    nothing: int
    min_confidence: float | None
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return the values as a dict that can be written as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"min_relevance={self.min_relevance:g} keeps {self.kept_first:.1%} of the evidence among the first {FIRST}"
            f" results and {self.kept:.1%} of all: {self.shown:.1f} results are shown per question instead of"
            f" {self.results:.1f}, and none for {pluralize(self.nothing, 'question')} of {self.questions}.",
            f"The confidence is low for {self.low:.1%} of the questions and high for {self.high:.1%}.",
        ]
        if self.min_confidence is not None:
            lines.append(f"min_confidence={self.min_confidence:g} makes it low for at most {LOW:.0%}.")
        return "\n".join(lines)


def calibrate(project: HasRetriever, questions: Questions) -> Calibration:
    """Choose the limits of relevance and confidence from questions that the documents answer.

    The limit of relevance is the largest one that keeps 97 % of the evidence among the first five results and 90 % of
    that among all results. The limit of confidence is lowered if more than 5 % of the questions are rated "low".

    Args:
        project: The project; it is not changed.
        questions: Questions, dicts with the keys of a line in a question file, or the path of such a file.

    Raises:
        InputError: There are no questions, the file cannot be read, the results contain too little of the evidence, or
            the project reranks with a model.

    Example:
        >>> limits = calibrate(project, "questions.jsonl")  # doctest: +SKIP
        >>> project.update_config(min_relevance=limits.min_relevance)  # doctest: +SKIP
    """
    question_list = as_questions(questions)
    version = getattr(project, "live_version", None)
    if isinstance(version, OpenVersion):
        require_files(version.records, question_list)
    retriever = project.as_retriever(similarity_top_k=TOP_K)
    responses = [respond_of(retriever, QueryBundle(question.text)) for question in question_list]
    if any(response.reranker is not None and response.reranker.passages for response in responses):
        raise InputError(
            "The project reranks with a model, which has its own limit, `rerank_threshold`. To calibrate"
            " without the model, set `rerank` to spotlight."
        )
    ranks = [
        question.ranks([ResultChunk(chunk) for chunk in response.results])
        for question, response in zip(question_list, responses, strict=True)
    ]
    pairs = np.array([(at, rank) for at, of_question in enumerate(ranks) for rank in of_question if rank is not None])
    if len(pairs) < LEAST:
        raise InputError(
            f"The results contain {pluralize(len(pairs), 'piece')} of the evidence, but at least {LEAST} are needed to"
            " choose a limit: add questions, or check with `evaluate` whether their evidence is found.",
            value=len(pairs),
        )
    kept = {float(cut): _kept(pairs, _numbers_shown(responses, cut)) for cut in _STEPS}
    cut = max((cut for cut, (first, every) in kept.items() if first >= KEPT_FIRST and every >= KEPT), default=0.0)
    shown = _numbers_shown(responses, cut)
    kept_first, kept_of_all = _kept(pairs, shown)
    confidences = np.array([response.confidence or 0.0 for response in responses])
    # The limits of the release, because `min_confidence` may have been lowered by an earlier calibration.
    limits = np.array([MODELS[cast("Mode", response.mode_used)].low or 0.0 for response in responses])
    low = float(np.mean(confidences < limits))
    levels = [response.confidence_level for response in responses]
    return Calibration(
        questions=len(responses),
        evidence=len(pairs),
        min_relevance=cut,
        kept_first=kept_first,
        kept=kept_of_all,
        results=float(np.mean([len(response.results) for response in responses])),
        shown=float(shown.mean()),
        nothing=int(np.sum(shown == 0)),
        min_confidence=_rounded_down(float(np.quantile(confidences, LOW, method="lower"))) if low > LOW else None,
        low=low,
        high=levels.count("high") / len(levels),
    )


def _numbers_shown(responses: Sequence[RetrievalResponse], cut: float) -> NDArray[np.int64]:
    """Return the number of results of each response that are shown with a limit of relevance."""
    return np.array([sure_results(response.results, cut) for response in responses])


def _kept(pairs: NDArray[np.int64], shown: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of the evidence among the first results, and among all results, that is shown.

    Args:
        pairs: For each piece of evidence, the position of its question and its rank in the results.
        shown: Number of results of each question that are shown.
    """
    of_question, ranks = pairs.T
    is_shown = ranks <= shown[of_question]
    is_first = ranks <= FIRST
    return float(is_shown[is_first].mean()) if is_first.any() else 1.0, float(is_shown.mean())


def _rounded_down(value: float) -> float:
    return math.floor(value * 1_000) / 1_000
