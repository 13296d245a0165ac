"""Answer many questions, compare the answers with the correct answers, and export the results to files."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual._utils.calls import twin
from llama_index_contextual._version import __version__
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import AnswerUsage, GroundedResponse, add_up
from llama_index_contextual.config import default
from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.index import files

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CITATION = re.compile(r"\[sources? [^\[\]]*\]", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Return an answer in lower case without citations, punctuation, articles or extra white space.

    Based on the SQuAD evaluation script, which does not remove citations; see Rajpurkar et al., "SQuAD: 100,000+
    Questions for Machine Comprehension of Text", EMNLP 2016.

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
    """Return the word-level F1 score of an answer, or 1 if both answers are empty.

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
    """A question with its correct answers and evidence, if known.

    Attributes:
        question: The question.
        answers: The correct answers; a prediction is scored against the correct answer that matches it best.
        evidence: Text of a passage that answers the question, or an empty string.
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
        error: A sentence that explains why there is no answer, or None.
        response: The full response, or None.
        exact: Exact-match score, or None if no correct answer is known.
        f1: Word-level F1 score, or None if no correct answer is known.
    """

    qa: QA
    answer: str
    error: str | None = None
    response: GroundedResponse | None = None

    @property
    def exact(self) -> float | None:
        """Exact-match score against the best-matching correct answer."""
        return max((exact_match(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def f1(self) -> float | None:
        """F1 score against the best-matching correct answer."""
        return max((f1_score(self.answer, truth) for truth in self.qa.answers), default=None)

    @property
    def hits(self) -> Sequence[NodeWithScore]:
        """The passages in the prompt."""
        return self.response.source_nodes if self.response is not None else ()

    @property
    def retrieved(self) -> bool | None:
        """True if a passage contains the evidence or, if no evidence is known, a correct answer.

        None if neither the evidence nor a correct answer is known.
        """
        if not self._expected:
            return None
        return any(self._contains(hit, text) for hit in self.hits for text in self._expected)

    @property
    def hard_negatives(self) -> list[NodeWithScore]:
        """The passages in the prompt that do not contain the evidence or, if no evidence is known, a correct answer."""
        expected = self._expected
        return [hit for hit in self.hits if expected and not any(self._contains(hit, text) for text in expected)]

    @property
    def _expected(self) -> list[str]:
        return [self.qa.evidence] if self.qa.evidence else list(self.qa.answers)

    def to_dict(self) -> dict[str, Any]:
        """Return the question, the answer and the scores as JSON values, without the response."""
        truth = list(self.qa.answers)
        scores = {name: getattr(self, name) for name in ("exact", "f1", "retrieved", "error")}
        return {"question": self.qa.question, "answer": self.answer, "truth": truth, **scores}

    @staticmethod
    def _contains(hit: NodeWithScore, text: str) -> bool:
        return f" {normalise_answer(text)} " in f" {normalise_answer(hit.node.get_content())} "


@dataclass(frozen=True)
class Predictions:
    """The answers to many questions, in the order of the questions.

    Attributes:
        rows: The answers.
        settings: Model, style and other settings of the engine; see `engine_settings`.
    """

    rows: Sequence[Prediction]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> float | None:
        """Mean exact-match score over the questions with a known correct answer; a failed answer counts as 0."""
        return _mean([row.exact for row in self.rows])

    @property
    def f1(self) -> float | None:
        """Mean F1 score over the questions with a known correct answer; a failed answer counts as 0."""
        return _mean([row.f1 for row in self.rows])

    @property
    def usage(self) -> AnswerUsage | None:
        """Tokens and list price of all answers; None if no model was called."""
        return add_up([row.response.usage for row in self.rows if row.response and row.response.usage])

    @property
    def failed_retrievals(self) -> list[Prediction]:
        """The answers for which no retrieved passage contains the evidence or a correct answer."""
        return [row for row in self.rows if row.retrieved is False]

    def summary(self) -> dict[str, Any]:
        """Return the summary figures as JSON values; scores are None if no correct answers are known."""
        return {
            "questions": len(self.rows),
            "exact": self.exact,
            "f1": self.f1,
            "not_found": sum(row.response is not None and not row.response.found for row in self.rows),
            "failed_retrievals": len(self.failed_retrievals),
            "errors": sum(row.error is not None for row in self.rows),
            "usage": None if self.usage is None else self.usage.to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, figures and answers as JSON values."""
        rows = [
            {**row.to_dict(), "response": None if row.response is None else row.response.to_dict()} for row in self.rows
        ]
        return {"settings": dict(self.settings), **self.summary(), "rows": rows}

    def to_csv(self) -> str:
        """Return the answers as CSV, with one row per question.

        A row contains the prediction, the correct answers, the model, the style, and all settings as JSON.
        """
        engine = {name: str(self.settings.get(name, "")) for name in ("model", "style")}
        engine["settings"] = json.dumps(dict(self.settings), ensure_ascii=False, sort_keys=True, default=str)
        rows = [
            {
                **row.to_dict(),
                "truth": " | ".join(row.qa.answers),
                "partial": None if row.response is None else row.response.partial,
                "hard_negatives": " ".join(hit.node.node_id for hit in row.hard_negatives),
                **engine,
            }
            for row in self.rows
        ]
        return csv_text(rows)

    def to_ares(self) -> str:
        """Return tab-separated values for ARES: the query, the document (all retrieved passages) and the answer.

        The format has no column for the settings.

        Source: Saad-Falcon et al., "ARES: An Automated Evaluation Framework for Retrieval-Augmented Generation
        Systems", NAACL 2024.
        """
        lines = [("Query", "Document", "Answer")]
        lines += [
            (row.qa.question, "\n".join(hit.node.get_content() for hit in row.hits), row.answer) for row in self.rows
        ]
        return "".join("\t".join(" ".join(field.split()) for field in line) + "\n" for line in lines)

    def write(self, path: str | Path) -> None:
        """Write a .csv file (see `to_csv`), a .json file (see `to_dict`) or a .tsv file (see `to_ares`).

        Raises:
            InputError: The file name has a different extension.
        """
        writers: dict[str, Callable[[], str]] = {
            ".csv": self.to_csv,
            ".json": lambda: json.dumps(self.to_dict(), ensure_ascii=False, indent=1, default=str) + "\n",
            ".tsv": self.to_ares,
        }
        files.write(Path(path), writers[check_predictions_file(path)]().encode())


PREDICTION_FILES = (".csv", ".json", ".tsv")
"""Extensions of the files that `Predictions.write` can write."""


def check_predictions_file(path: str | Path) -> str:
    """Check that `Predictions.write` can write a file with this name, and return the extension.

    Raises:
        InputError: `Predictions.write` does not support the extension.
    """
    if (suffix := Path(path).suffix.lower()) not in PREDICTION_FILES:
        raise InputError(f"{path} is neither .csv, .json nor .tsv (for ARES).", value=str(path))
    return suffix


def engine_settings(engine: GroundedQueryEngine) -> dict[str, Any]:
    """Return the settings of an engine and its project as JSON values."""
    retriever = engine.retriever.retriever
    config, options = getattr(retriever, "config", None), asdict(engine.options)
    options["context_in_prompt"] = options.pop("context")  # `context` is the project's setting
    return {
        **({} if config is None else config.model_dump(mode="json")),
        "package": __version__,
        "model": engine.answer_stream.name,
        **options,
        "judge": None if engine.judge is None else engine.judge.settings,
        "guards": None if engine.guards is None else str(engine.guards),
        **{name: getattr(retriever, name, None) for name in ("mode", "similarity_top_k")},
    }


async def aanswer_many(
    engine: GroundedQueryEngine, questions: Sequence[QA | str], *, concurrency: int = default("llm_concurrency")
) -> Predictions:
    """Answer many questions concurrently. Errors in individual answers are included in the result.

    Args:
        engine: The query engine.
        questions: The questions, with their correct answers if known.
        concurrency: Maximum number of questions to answer concurrently.

    Raises:
        InputError: `concurrency` is not positive.
    """
    if concurrency < 1:
        raise InputError(f"concurrency is {concurrency}: it must be at least 1.", value=concurrency)
    semaphore = asyncio.Semaphore(concurrency)

    async def answer_one(item: QA | str) -> Prediction:
        qa = QA(question=item) if isinstance(item, str) else item
        async with semaphore:
            try:
                draft = await engine.adraft(QueryBundle(qa.question))
                response = cast(GroundedResponse, await engine.aanswer(draft))
            except ContextualError as error:
                return Prediction(qa=qa, answer="", error=str(error))
        if response.is_missing:
            return Prediction(qa=qa, answer="", error=response.partial, response=response)
        return Prediction(qa=qa, answer=str(response), response=response)

    return Predictions(await asyncio.gather(*(answer_one(item) for item in questions)), engine_settings(engine))


answer_many = twin(aanswer_many)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header line; lists are left out.

    Text that a spreadsheet would interpret as a formula is prefixed with an apostrophe. Values that are not finite are
    left blank.
    """
    names = [name for name, value in rows[0].items() if not isinstance(value, list)] if rows else []
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
