"""Answering many questions: comparison with the correct answers, exact match and F1, and files for other tools."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.storage import files

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CITATION = re.compile(r"\[sources? [^\]]*\]", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Return an answer in lower case without citations, punctuation, articles and superfluous white space.

    Source: the evaluation script of SQuAD; Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of
    Text", EMNLP 2016. The script does not remove citations.

    Example:
        >>> normalise_answer("The  three days, [Source 1].")
        'three days'
    """
    return " ".join(_ARTICLES.sub(" ", _CITATION.sub(" ", text).lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truth: str) -> float:
    """Return 1 if two answers are equal after normalisation, otherwise 0.

    Example:
        >>> exact_match("The ACME Corp.", "acme corp")
        1.0
    """
    return float(normalise_answer(answer) == normalise_answer(truth))


def f1_score(answer: str, truth: str) -> float:
    """Return the harmonic mean of precision and recall of the words of an answer; 1 if both answers are empty.

    Example:
        >>> f1_score("three whole days", "three days")
        0.8
    """
    words, expected = normalise_answer(answer).split(), normalise_answer(truth).split()
    if not words or not expected:
        return float(words == expected)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected))


@dataclass(frozen=True, kw_only=True)
class QA:
    """A question with its correct answers and its evidence, if known.

    Attributes:
        question: The question.
        answers: The correct answers; the best match counts.
        evidence: Text of a passage that answers the question; empty if unknown.
    """

    question: str
    answers: Sequence[str] = ()
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer to one question.

    Attributes:
        qa: The question.
        answer: Text of the answer; empty if the model failed.
        error: Why there is no answer, in a sentence, or None.
        response: The full response, or None.
        exact: Exact match, or None without a correct answer.
        f1: F1 of the words, or None without a correct answer.
    """

    qa: QA
    answer: str
    error: str | None = None
    response: GroundedResponse | None = None

    @property
    def exact(self) -> float | None:
        """Exact match with the best of the correct answers."""
        return max((exact_match(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def f1(self) -> float | None:
        """F1 with the best of the correct answers."""
        return max((f1_score(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def hits(self) -> Sequence[NodeWithScore]:
        """The passages in the prompt."""
        return self.response.source_nodes if self.response is not None else ()

    @property
    def retrieved(self) -> bool | None:
        """Whether a passage contains the evidence, or a correct answer if there is none; None if neither is known."""
        if not self._expected:
            return None
        return any(self._contains(hit, text) for hit in self.hits for text in self._expected)

    @property
    def hard_negatives(self) -> list[NodeWithScore]:
        """The passages in the prompt that contain neither the evidence nor a correct answer."""
        expected = self._expected
        return [hit for hit in self.hits if expected and not any(self._contains(hit, text) for text in expected)]

    @property
    def _expected(self) -> list[str]:
        return [self.qa.evidence] if self.qa.evidence else list(self.qa.answers)

    @staticmethod
    def _contains(hit: NodeWithScore, text: str) -> bool:
        return f" {normalise_answer(text)} " in f" {normalise_answer(hit.node.get_content())} "


@dataclass(frozen=True)
class Predictions:
    """The answers to many questions, in their order."""

    rows: Sequence[Prediction]

    @property
    def exact(self) -> float | None:
        """Mean exact match over the questions with a correct answer; a failed answer counts as 0."""
        return _mean([row.exact for row in self.rows])

    @property
    def f1(self) -> float | None:
        """Mean F1 over the questions with a correct answer; a failed answer counts as 0."""
        return _mean([row.f1 for row in self.rows])

    @property
    def failed_retrievals(self) -> list[Prediction]:
        """The questions whose evidence is in no passage."""
        return [row for row in self.rows if row.retrieved is False]

    def to_csv(self) -> str:
        """Return one line per question, with the prediction and the correct answers."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            ["question", "answer", "truth", "exact", "f1", "retrieved", "partial", "error", "hard_negatives"]
        )
        for row in self.rows:
            negatives = " ".join(hit.node.node_id for hit in row.hard_negatives)
            partial = row.response.partial if row.response is not None else None
            figures = [row.exact, row.f1, row.retrieved, partial, row.error, negatives]
            writer.writerow([_cell(row.qa.question), _cell(row.answer), _cell(" | ".join(row.qa.answers)), *figures])
        return out.getvalue()

    def to_ares(self) -> str:
        """Return tab-separated lines for ARES: Query, Document (all passages of the question), Answer.

        Source: Saad-Falcon et al., "ARES: An Automated Evaluation Framework for Retrieval-Augmented Generation
        Systems", NAACL 2024.
        """
        lines = [("Query", "Document", "Answer")]
        lines += [
            (row.qa.question, "\n".join(hit.node.get_content() for hit in row.hits), row.answer) for row in self.rows
        ]
        return "".join("\t".join(" ".join(field.split()) for field in line) + "\n" for line in lines)

    def write(self, path: str | Path) -> None:
        """Write a .csv file (see `to_csv`) or a .tsv file (see `to_ares`).

        Raises:
            InputError: The file name has another extension.
        """
        writers: dict[str, Callable[[], str]] = {".csv": self.to_csv, ".tsv": self.to_ares}
        if (suffix := Path(path).suffix.lower()) not in writers:
            raise InputError(f"{path} is neither .csv nor .tsv (for ARES).", value=str(path))
        files.write(Path(path), writers[suffix]().encode())


async def aanswer_many(
    engine: GroundedQueryEngine, questions: Sequence[QA | str], *, concurrency: int = 8
) -> Predictions:
    """Answer many questions concurrently; a question that fails is in the result with its error.

    Args:
        engine: The query engine.
        questions: The questions, with their answers if known.
        concurrency: Maximum number of questions answered at the same time.

    Raises:
        InputError: `concurrency` is not positive.
    """
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}: it must be at least 1.", value=concurrency)
    semaphore = asyncio.Semaphore(concurrency)

    async def one(item: QA | str) -> Prediction:
        qa = QA(question=item) if isinstance(item, str) else item
        async with semaphore:
            try:
                draft = await engine.adraft(QueryBundle(qa.question))
                response = cast(GroundedResponse, await engine.aanswer(draft))
            except ContextualError as error:
                return Prediction(qa=qa, answer="", error=str(error))
        return Prediction(qa=qa, answer=str(response), response=response)

    return Predictions(await asyncio.gather(*(one(item) for item in questions)))


def answer_many(engine: GroundedQueryEngine, questions: Sequence[QA | str], *, concurrency: int = 8) -> Predictions:
    """Answer many questions like `aanswer_many`, from synchronous code."""
    return run_sync(lambda: aanswer_many(engine, questions, concurrency=concurrency))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(text: str) -> str:
    """Return a text that a spreadsheet does not interpret as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
