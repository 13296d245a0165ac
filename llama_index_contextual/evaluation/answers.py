"""Sweep of settings with answers: chunk sizes, modes and numbers of results, scored against the correct answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate

from llama_index_contextual._utils.keywords import takes
from llama_index_contextual.answering.batch import QA, Predictions, answer_many
from llama_index_contextual.answering.build import Keywords, grounded_engine
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.options import EngineOptions
from llama_index_contextual.answering.usage import AnswerAccount
from llama_index_contextual.config import ContextKind, Mode
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.charts import line_chart
from llama_index_contextual.evaluation.run import ShowVariants, VariantProgress, build_progress
from llama_index_contextual.evaluation.sweep import SweepSetting, variant_config
from llama_index_contextual.evaluation.variants import price_of_all, require_affordable, workspace
from llama_index_contextual.index import files
from llama_index_contextual.ingestion.state import HasState
from llama_index_contextual.retrievers.project import ProjectRetriever

TOP_KS = (3, 5, 10)


@dataclass(frozen=True, kw_only=True)
class AnswerRow(SweepSetting):
    """The answers with one setting.

    Attributes:
        predictions: The answers.
    """

    predictions: Predictions = field(repr=False)

    def figures(self) -> dict[str, Any]:
        """Return the setting and its figures as JSON values; scores are None if no question has a correct answer."""
        predictions = self.predictions
        return {
            "context": self.context,
            "chunk_size": self.chunk_size,
            "mode": self.mode,
            "top_k": self.top_k,
            "exact": predictions.exact,
            "f1": predictions.f1,
            "failed_retrievals": len(predictions.failed_retrievals),
            "errors": sum(row.error is not None for row in predictions.rows),
            "questions": len(predictions.rows),
            "model": predictions.settings.get("model"),
            "style": predictions.settings.get("style"),
        }


@dataclass(frozen=True, kw_only=True)
class AnswerSweep:
    """The result of a sweep with answers.

    Attributes:
        rows: One row per setting, in the order of contexts, chunk sizes, modes and numbers of results.
    """

    rows: Sequence[AnswerRow]

    def best(self) -> AnswerRow:
        """Return the setting with the highest F1; exact match, then fewer results break ties."""
        return max(self.rows, key=lambda row: (row.predictions.f1 or 0, row.predictions.exact or 0, -row.top_k))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values."""
        return [row.figures() for row in self.rows]

    def to_csv(self) -> str:
        """Return one line for each setting."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.rows[0].figures()), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.table())
        return out.getvalue()

    def chart(self) -> str:
        """Return an SVG with F1 by number of results, one line for each setting.

        Raises:
            ConfigurationError: matplotlib is not installed.
        """
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            lines.setdefault(row.name, []).append((row.top_k, 100 * (row.predictions.f1 or 0.0)))
        return line_chart(lines, x="results (top k)", y="F1 in per cent")

    def write(self, path: str | Path) -> None:
        """Write a .csv file (see `to_csv`) or an .svg file (see `chart`).

        Raises:
            InputError: The file name has another extension.
        """
        writers: dict[str, Callable[[], str]] = {".csv": self.to_csv, ".svg": self.chart}
        if (suffix := Path(path).suffix.lower()) not in writers:
            raise InputError(f"{path} is neither .csv (the table) nor .svg (the chart).", value=str(path))
        files.replace(Path(path), writers[suffix]().encode())


def load_qa(path: str | Path) -> list[QA]:
    """Read questions with their correct answers from a file of JSON lines.

    A line is `{"question": "…", "answers": ["…"]}`; `"answer": "…"` is one answer, and both may be missing. The first
    text in `"evidence"` is used to find out whether the evidence was retrieved.

    Raises:
        InputError: The file cannot be read, or a line is not a question; the message names the line.
    """
    path = Path(path)
    try:
        lines = files.read(path).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason}): name a file of JSON lines.", value=str(path)) from error
    items = [_qa(line, f"{path.name}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise InputError(
            f'{path.name} has no questions: write one JSON object per line, with "question" and "answers".'
        )
    return items


def _qa(line: str, place: str) -> QA:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is not JSON: write one JSON object per line.", value=line) from error
    question = row.get("question") if isinstance(row, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise InputError(f'{place}: has no "question": write {{"question": "…", "answers": ["…"]}}.', value=line)
    answers = row.get("answers", row.get("answer", []))
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f'{place}: "answers" is not a list of texts.', value=line)
    evidence = row.get("evidence") or []
    texts = (
        [item.get("text") if isinstance(item, dict) else item for item in evidence]
        if isinstance(evidence, list)
        else []
    )
    return QA(question=question, answers=answers, evidence=next((text for text in texts if isinstance(text, str)), ""))


@takes(EngineOptions)
def sweep_answers(
    project: HasState,
    questions: Sequence[QA],
    *,
    llm: LLM | None = None,
    chunk_sizes: Sequence[int] = (),
    contexts: Sequence[ContextKind] = (),
    modes: Sequence[Mode] = (),
    top_ks: Sequence[int] = TOP_KS,
    concurrency: int = 8,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
    system_prompt: str | None = None,
    text_qa_template: BasePromptTemplate | None = None,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    **options: Unpack[EngineOptions],
) -> AnswerSweep:
    """Answer the questions with every combination of settings; variants are built for it and removed afterwards.

    Args:
        project: The project.
        questions: Questions with their correct answers.
        llm: LLM that writes the answers; None uses the project's.
        chunk_sizes: Chunk sizes in tokens; empty for the project's.
        contexts: Kinds of context; empty for the project's.
        modes: Modes of retrieval; empty for the project's.
        top_ks: Numbers of results.
        concurrency: Maximum number of questions answered at the same time.
        max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if the cost is higher or
            unknown. The cost of the answers is not included.
        progress: Called as the work proceeds, first with the cost before anything is built; it may raise to stop.
        system_prompt: As in `Project.as_query_engine`, like all following options.
        text_qa_template: Template of the message with passages and question.
        node_postprocessors: Applied to the hits first.
        **options

    Raises:
        InputError: There are no settings or questions, or the cost is higher than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode is invalid.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin = project.state
    if not questions or not top_ks or min(top_ks) < 1:
        raise InputError("There is nothing to evaluate: pass at least one question and one positive number of results.")
    sizes = tuple(chunk_sizes) or (origin.config.chunk_size,)
    kinds = tuple(contexts) or (origin.config.context,)
    configs = [variant_config(origin.config, kind, size) for kind in kinds for size in sizes]
    report = progress or (lambda _: None)
    dollars = price_of_all(origin, configs, excluded=frozenset())
    require_affordable(dollars, max_cost, len(origin.live.current().records))
    report(VariantProgress(stage="price", dollars=dollars))
    answering, account = llm or origin.answering_llm(), AnswerAccount.of(origin.directory, origin.config.prices)
    common = Keywords(
        system_prompt=system_prompt,
        text_qa_template=text_qa_template,
        node_postprocessors=node_postprocessors,
        project_cache=AnswerCache.of(origin.directory),
    )
    rows: list[AnswerRow] = []
    with workspace(origin) as space:
        for config in configs:
            name = f"{config.context}, {config.chunk_size} tokens"
            variant = space.build(config, progress=build_progress(report, name))
            for mode, k in product(modes or (config.mode,), sorted(set(top_ks))):
                retriever = ProjectRetriever(variant.live, config, mode=mode, similarity_top_k=k)
                engine = grounded_engine(retriever, lambda: origin.embed_model, answering, options, account, common)
                row = AnswerRow(
                    context=config.context,
                    chunk_size=config.chunk_size,
                    mode=mode,
                    top_k=k,
                    predictions=answer_many(engine, questions, concurrency=concurrency),
                )
                report(VariantProgress(stage="ask", name=row.name, done=len(questions), total=len(questions)))
                rows.append(row)
    return AnswerSweep(rows=tuple(rows))
