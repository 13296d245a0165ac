"""Many questions at once: predictions beside the truth, exact match and F1, and files for other tools."""

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
    """Return an answer without case, punctuation, articles and superfluous white space, and without its citations.

    Source: the evaluation script of SQuAD; Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of
    Text", EMNLP 2016. Leaving out citations is ours.

    Example:
        >>> normalise_answer("The  three days, [Source 1].")
        'three days'
    """
    return " ".join(_ARTICLES.sub(" ", _CITATION.sub(" ", text).lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, truth: str) -> float:
    """Return 1 where two answers are the same when normalised, otherwise 0.

    Example:
        >>> exact_match("The ACME Corp.", "acme corp")
        1.0
    """
    return float(normalise_answer(answer) == normalise_answer(truth))


def f1_score(answer: str, truth: str) -> float:
    """Return the harmonic mean of precision and recall of the words of an answer; two empty ones agree.

    Example:
        >>> f1_score("three whole days", "three days")
        0.8
    """
    said, wanted = normalise_answer(answer).split(), normalise_answer(truth).split()
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted))


@dataclass(frozen=True, kw_only=True)
class QA:
    """A question, its answers if they are known, and words that a passage must hold to answer it.

    Attributes:
        question: The question.
        answers: Right answers; the best match counts.
        evidence: Text of a passage that answers it; empty where that is not known.
    """

    question: str
    answers: Sequence[str] = ()
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What became of one question.

    Attributes:
        qa: The question.
        answer: What was answered; empty where the model failed.
        error: Why there is no answer, in a sentence, or None.
        response: The whole answer, or None.
        exact: Exact match, or None without a right answer.
        f1: F1 of the words, or None without a right answer.
    """

    qa: QA
    answer: str
    error: str | None = None
    response: GroundedResponse | None = None

    @property
    def exact(self) -> float | None:
        """Exact match with the best of the right answers."""
        return max((exact_match(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def f1(self) -> float | None:
        """F1 with the best of the right answers."""
        return max((f1_score(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def hits(self) -> Sequence[NodeWithScore]:
        """The passages that the model read."""
        return self.response.source_nodes if self.response is not None else ()

    @property
    def retrieved(self) -> bool | None:
        """Whether a passage holds the evidence, or a right answer where there is none; None where neither is known."""
        wanted = [self.qa.evidence] if self.qa.evidence else list(self.qa.answers)
        if not wanted:
            return None
        return any(self._holds(hit, text) for hit in self.hits for text in wanted)

    @property
    def hard_negatives(self) -> list[NodeWithScore]:
        """The passages that were read although they hold nothing of what was wanted."""
        wanted = [self.qa.evidence] if self.qa.evidence else list(self.qa.answers)
        return [hit for hit in self.hits if wanted and not any(self._holds(hit, text) for text in wanted)]

    @staticmethod
    def _holds(hit: NodeWithScore, text: str) -> bool:
        return f" {normalise_answer(text)} " in f" {normalise_answer(hit.node.get_content())} "


@dataclass(frozen=True)
class Predictions:
    """What became of many questions, in their order."""

    rows: Sequence[Prediction]

    @property
    def exact(self) -> float | None:
        """Mean exact match over the questions with a right answer; an answer that failed counts 0."""
        return _mean([row.exact for row in self.rows])

    @property
    def f1(self) -> float | None:
        """Mean F1 over the questions with a right answer; an answer that failed counts 0."""
        return _mean([row.f1 for row in self.rows])

    @property
    def failed_retrievals(self) -> list[Prediction]:
        """The questions whose evidence no passage holds."""
        return [row for row in self.rows if row.retrieved is False]

    def to_csv(self) -> str:
        """Return one line per question: the prediction beside the truth."""
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
        """Return the tab-separated lines that ARES reads: Query, Document, Answer; the passages of a question joined.

        Source: Saad-Falcon et al., "ARES: An Automated Evaluation Framework for Retrieval-Augmented Generation
        Systems", NAACL 2024.
        """
        lines = [("Query", "Document", "Answer")]
        lines += [
            (row.qa.question, "\n".join(hit.node.get_content() for hit in row.hits), row.answer) for row in self.rows
        ]
        return "".join("\t".join(" ".join(field.split()) for field in line) + "\n" for line in lines)

    def write(self, path: str | Path) -> None:
        """Write `to_csv` into a .csv file, or `to_ares` into a .tsv file.

        Raises:
            InputError: The name ends otherwise.
        """
        writers: dict[str, Callable[[], str]] = {".csv": self.to_csv, ".tsv": self.to_ares}
        if (suffix := Path(path).suffix.lower()) not in writers:
            raise InputError(f"{path} is neither .csv nor .tsv (for ARES).", value=str(path))
        files.write(Path(path), writers[suffix]().encode())


async def aanswer_many(
    engine: GroundedQueryEngine, questions: Sequence[QA | str], *, concurrency: int = 8
) -> Predictions:
    """Answer many questions, some at the same time; one that fails is in the result with its error.

    Args:
        engine: Searches and answers.
        questions: The questions, with their answers where they are known.
        concurrency: Questions under way at the same time, at most.

    Raises:
        InputError: concurrency is not positive.
    """
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}: at least one question must be under way.", value=concurrency)
    room = asyncio.Semaphore(concurrency)

    async def one(item: QA | str) -> Prediction:
        qa = QA(question=item) if isinstance(item, str) else item
        async with room:
            try:
                draft = await engine.adraft(QueryBundle(qa.question))
                response = cast(GroundedResponse, await engine.aanswer(draft))
            except ContextualError as error:
                return Prediction(qa=qa, answer="", error=str(error))
        return Prediction(qa=qa, answer=str(response), response=response)

    return Predictions(await asyncio.gather(*(one(item) for item in questions)))


def answer_many(engine: GroundedQueryEngine, questions: Sequence[QA | str], *, concurrency: int = 8) -> Predictions:
    """Do as `aanswer_many` does, for callers without an event loop."""
    return run_sync(lambda: aanswer_many(engine, questions, concurrency=concurrency))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(text: str) -> str:
    """Return a text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
