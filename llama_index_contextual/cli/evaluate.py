"""The `evaluate` command, which measures a project, compares variants or steps, or sweeps over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name, err, safe, say
from llama_index_contextual.errors import InputError

if TYPE_CHECKING:
    from llama_index_contextual.answering.batch import Predictions
    from llama_index_contextual.answering.query_engine import GroundedQueryEngine
    from llama_index_contextual.evaluation.compare import Comparison, VariantProgress
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.report import Result
    from llama_index_contextual.evaluation.run import Evaluation
    from llama_index_contextual.evaluation.steps import Steps
    from llama_index_contextual.project.project import Project

commands = Commands("Questions")

_KS = (1, 5, 10, 20)
_SHOWN = 5
"""Maximum number of failed questions or wrong answers to print."""


@commands.command("evaluate")
def evaluate_project(
    name: Name,
    questions: Annotated[Path | None, typer.Argument(metavar="FILE")] = None,
    compare: Annotated[str | None, typer.Option(metavar="KINDS")] = None,
    sweep: Annotated[str | None, typer.Option(metavar="SIZES")] = None,
    steps: Annotated[bool, typer.Option("--steps")] = False,
    rerank: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="NUMBER", min=1)] = None,
    sample: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
    number: Annotated[int, typer.Option(metavar="NUMBER")] = 50,
    save: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    answers: Annotated[bool, typer.Option("--answers")] = False,
    calibrate: Annotated[bool, typer.Option("--calibrate")] = False,
    report: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    llm: common.Llm = None,
    settings: common.Settings = None,
    max_cost: Annotated[float | None, typer.Option(metavar="DOLLARS")] = None,
    yes: common.Yes = False,
) -> None:
    """Measure how well a project finds the evidence for questions, and whether contexts pay off.

    Args:
        questions: JSON Lines file with questions and their evidence; without it, the LLM writes questions.
        compare: Kinds of context to compare: none,structural,llm.
        sweep: Chunk sizes to try in each mode: 400,800,1200.
        steps: Count failed retrievals with embeddings alone, and as contexts, BM25 and reranking are added.
        rerank: Reranker instead of the `rerank` setting: none, spotlight, auto, llm or a cross-encoder; several for
            --sweep; with --steps, the reranker of the last step.
        top_k: Number of results in which --steps looks for the evidence; by default the most, of 20, 10, 5 and 1, at
            which the steps differ.
        sample: Number of documents for which the LLM writes contexts, to decide whether they pay off, before paying for
            all; with --compare, --steps or --sweep, the maximum number of documents to index.
        number: Number of questions to write if no file is given.
        save: File to save the written questions to.
        answers: Have the LLM answer the questions, and compare its answers with `answers` in the file.
        calibrate: From the questions, choose the limits below which results are folded away and confidence is low, and
            store them in the settings `min_relevance` and `min_confidence`.
        report: Report to write: .html, .json or .csv; with --steps also a chart (.svg), with --answers also .tsv for
            ARES. Repeatable.
        max_cost: Maximum cost of contexts, embeddings and reranking in dollars.
    """
    from llama_index_contextual.evaluation.compare import (
        VariantProgress,
        compare_variants,
        require_affordable,
        rerank_price,
        sweep_variants,
    )
    from llama_index_contextual.evaluation.payoff import evaluate_payoff
    from llama_index_contextual.evaluation.questions import load_questions, write_questions
    from llama_index_contextual.evaluation.report import check_report
    from llama_index_contextual.evaluation.run import evaluate
    from llama_index_contextual.evaluation.steps import evaluate_steps
    from llama_index_contextual.index import files

    changes = common.changed_settings(llm, settings, answers=True)
    project = common.open_with(name, ({"llm": llm} if llm is not None else {}) | changes)
    if answers:
        if compare is not None or sweep is not None or steps or rerank is not None:
            raise InputError("--answers measures the project as it is: omit --compare, --steps, --sweep and --rerank.")
        _evaluate_answers(project, questions, report or (), yes=yes)
        return
    if calibrate:
        if compare is not None or sweep is not None or steps or sample is not None:
            raise InputError(
                "--calibrate measures the project as it is: omit --compare, --steps, --sweep and --sample."
            )
        _calibrate(project, questions)
        return
    if steps and (compare is not None or sweep is not None):
        raise InputError("--steps measures its own variants: omit --compare and --sweep.")
    for path in report or ():
        check_report(path, chart=steps)
    if save is not None:
        files.require_folder(save)
    advice = _advice(steps=steps, sample=sample, max_cost=max_cost) if steps or compare or sweep else ""
    progress = _Progress(advice, asks=not yes and max_cost is None)
    options: dict[str, Any] = {"sample": sample, "max_cost": max_cost, "progress": progress}
    result: Result
    if sample is not None and compare is None and sweep is None and not steps:
        question_list = None if questions is None else load_questions(questions)
        options |= {"number": number, "rerank": rerank}
        result = common.interruptible(project, lambda: evaluate_payoff(project, question_list, ks=_KS, **options))
        if questions is None and save is not None:
            write_questions([result_row.question for result_row in result.evaluations[0].results], save)
        _report(result, report or ())
        return
    items = load_questions(questions) if questions is not None else _generate(project, number)
    if questions is None and save is not None:
        write_questions(items, save)
    if sweep is not None:
        options |= {"chunk_sizes": _numbers(sweep), "contexts": _names(compare or ""), "reranks": _names(rerank or "")}
        result = common.interruptible(project, lambda: sweep_variants(project, items, top_ks=_KS, **options))
    elif compare is not None:
        options |= {"variants": _names(compare), "rerank": rerank}
        result = common.interruptible(project, lambda: compare_variants(project, items, ks=_KS, **options))
    elif steps:
        options |= {"rerank": rerank, "k": top_k}
        result = common.interruptible(project, lambda: evaluate_steps(project, items, **options))
    else:
        dollars = rerank_price(project.state, rerank, len(items), max(_KS))
        require_affordable(dollars, max_cost)
        progress(VariantProgress(stage="price", dollars=dollars))
        result = evaluate(project, items, name=name, ks=_KS, rerank=rerank)
        for note in result.notes:
            say(f"[yellow]{safe(note)}[/]", to=err)
    _report(result, report or ())


def _report(result: Result, paths: Sequence[Path]) -> None:
    """Write the reports, and print the result."""
    from llama_index_contextual.evaluation.report import to_dict, write_report

    _write_reports([write_report(result, path) for path in paths])
    common.say_result(to_dict(result), partial(_show, result))


def _write_reports(paths: Sequence[Path]) -> None:
    for path in paths:
        say(f"Wrote {safe(str(path))}.", to=err)


def _calibrate(project: Project, questions: Path | None) -> None:
    """Choose the limits of relevance and confidence, print and store them."""
    from llama_index_contextual.evaluation.calibrate import calibrate

    if questions is None:
        raise InputError("--calibrate needs a file of questions with their evidence: name it after the project.")
    limits = calibrate(project, questions)
    project.update_config(min_relevance=limits.min_relevance, min_confidence=limits.min_confidence)
    common.say_result(limits.to_dict(), safe(str(limits)))
    say("[dim]Stored in the settings of the project.[/]", to=err)


def _evaluate_answers(project: Project, questions: Path | None, reports: Sequence[Path], *, yes: bool) -> None:
    """Answer the questions in a file, and print the exact match and F1 scores."""
    from llama_index_contextual.answering.batch import answer_many, check_predictions_file
    from llama_index_contextual.evaluation.questions import load_qa

    if questions is None:
        raise InputError("--answers needs a file of questions with their `answers`: name it after the project.")
    for path in reports:
        check_predictions_file(path)
    items = load_qa(questions)
    engine = cast("GroundedQueryEngine", project.as_query_engine())
    common.confirm(f"Let {engine.answer_stream.name} answer {pluralize(len(items), 'question')}?", yes=yes)
    predictions = answer_many(engine, items)
    for path in reports:
        predictions.write(path)
    _write_reports(reports)
    common.say_result(predictions.to_dict(), partial(_show_answers, predictions))


def _show_answers(predictions: Predictions) -> None:
    """Print the answer scores, the errors, and the first wrong answers next to the expected answers."""
    columns = ("questions", "exact", "f1", "not_found", "errors", "failed_retrievals")
    summary = predictions.summary()
    _show_rows([{key: summary[key] for key in columns}])
    if predictions.usage is not None:
        say(f"[dim]{safe(str(predictions.usage))}[/]")
    wrong = [row for row in predictions.rows if row.exact == 0 and row.error is None]
    for row in wrong[:_SHOWN]:
        say(f"[bold]{common.snippet(row.qa.question, 100)}[/]")
        say(f"expected: {common.snippet(' | '.join(row.qa.answers), 200)}", indent=2)
        say(f"answered: {common.snippet(row.answer, 200)}", indent=2)
    if wrong:
        say("[dim]Long answers lower both figures; for short ones: `configure NAME style=persona`.[/]", to=err)
    for row in predictions.rows:
        if row.error is not None:
            say(f"[yellow]{common.snippet(row.qa.question, 60)}[/]: {safe(row.error)}", to=err)


def _advice(*, steps: bool, sample: int | None, max_cost: float | None) -> str:
    """Return which options that are not set make a comparison, a sweep or the steps cheaper."""
    sentences = ["--sample 20 uses only twenty documents."] if sample is None else []
    if max_cost is None:
        free = "--max-cost 0" if steps else "--steps --max-cost 0 instead"
        sentences.append(f"{free} measures only what costs nothing.")
    return " ".join(sentences)


class _Progress:
    """Callback that prints each step of an evaluation, and asks for confirmation before money is spent."""

    def __init__(self, advice: str, *, asks: bool) -> None:
        self._advice, self._asks, self._last = advice, asks, ""

    def __call__(self, progress: VariantProgress) -> None:
        """Print a step and ask for confirmation if the price is not zero."""
        steps = {"build": f"Building {progress.name!r} …", "questions": "The LLM is writing questions …"}
        step = steps.get(progress.stage, "Evaluating the questions …")
        if progress.stage == "price" and progress.dollars != 0:
            dollars = progress.dollars
            cost = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
            say(f"Models will cost {cost} for contexts, embeddings and reranking.", to=err)
            if self._advice:
                say(self._advice, to=err)
            if self._asks:
                typer.confirm("Continue?", abort=True, err=True)
        elif progress.stage != "price" and step != self._last:
            say(f"[dim]{safe(step)}[/]", to=err)
            self._last = step


def _generate(project: Project, number: int) -> Sequence[Question]:
    from llama_index_contextual.evaluation.questions import generate_questions

    say(f"[dim]The LLM is writing {pluralize(number, 'question')} …[/]", to=err)
    return generate_questions(project.live_version, project.state.answering_llm(), number=number)


def _names(text: str) -> list[Any]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--sweep is {text!r}: pass whole numbers, separated by commas.", value=text) from error


def _show(result: Result) -> None:
    from llama_index_contextual.evaluation.compare import Comparison
    from llama_index_contextual.evaluation.run import Evaluation
    from llama_index_contextual.evaluation.steps import Steps

    if isinstance(result, Steps):
        _show_steps(result)
    elif isinstance(result, Comparison):
        _show_comparison(result)
    elif isinstance(result, Evaluation):
        _show_figures([result])
        _show_failures(result)
    else:
        for note in result.notes:
            say(f"[dim]{safe(note)}[/]")
        omissions = {"chunks", "cost", *(() if len({row.rerank for row in result.rows}) > 1 else ("rerank",))}
        _show_rows([{key: row[key] for key in row if key not in omissions} for row in result.table()])
        say(f"Best: {safe(result.best().name)}")


def _show_steps(result: Steps) -> None:
    from llama_index_contextual.money.price import money

    for note in result.notes:
        say(f"[dim]{safe(note)}[/]")
    rows = result.table()
    _show_rows([_step_cells(row, money(row["dollars"])) for row in rows if row["skipped"] is None])
    say(
        f"[dim]Failed retrievals (1 − {result.metric}) in per cent; change and fewer: compared with the step before;"
        f" in all: fewer than {rows[0]['step']}; * p < 0.05.[/]"
    )
    for name, reason in result.skipped.items():
        say(f"[yellow]{safe(name)}[/] skipped: {safe(reason)}")
    say(f"[bold]{safe(result.recommendation)}[/]")


def _step_cells(row: Mapping[str, Any], price: str) -> dict[str, str]:
    from llama_index_contextual.evaluation.compare import ALPHA

    cells = {"step": row["step"], "failed": f"{100 * row['failed']:.1f}"}
    cells["95 %"] = f"{100 * row['low']:.1f}–{100 * row['high']:.1f}"
    cells |= dict.fromkeys(("change", "p", "fewer", "in all"), "")
    if row["previous"] is not None:
        cells["change"] = f"{100 * row['change_from_previous']:+.1f}"
        cells["p"] = f"{row['p_from_previous']:.2g}{'*' if row['p_from_previous'] < ALPHA else ' '}"
        for name, kind in (("fewer", "previous"), ("in all", "first")):
            share = row[f"fewer_than_{kind}"]
            cells[name] = "" if share is None else f"{100 * share:.0f} %"
        cells["in all"] += "*" if row["p_from_first"] < ALPHA else " "
    return {**cells, "price": price, "ms": f"{row['p50_ms']:.1f}"}


def _show_comparison(result: Comparison) -> None:
    from llama_index_contextual.evaluation.payoff import Payoff

    for note in result.notes:
        say(f"[dim]{safe(note)}[/]")
    _show_figures(result.evaluations)
    differences = result.differences()
    if isinstance(result, Payoff):
        differences += result.differences(f"recall@{max(result.evaluations[0].ks)}")
    for difference in differences:
        mark = "[bold green]*[/] " if difference.significant else "  "
        say(f"{mark}{safe(f'{difference.variant} − {difference.baseline}, {difference.metric}: {difference}')}")
    for name, cost in result.costs.items():
        if cost != 0:
            say(f"  {safe(name)}: contexts {'of unknown cost' if cost is None else f'${cost:.4f}'}")
    say(f"[bold]{safe(result.recommendation)}[/]")


def _show_figures(evaluations: Sequence[Evaluation]) -> None:
    means = [
        {"per cent": metric, **{evaluation.name: f"{100 * evaluation.mean(metric):.1f}" for evaluation in evaluations}}
        for metric in evaluations[0].metrics
    ]
    times = [
        {
            "per cent": f"{key.partition('_')[0]}, ms",
            **{evaluation.name: f"{evaluation.summary()[key]:.1f}" for evaluation in evaluations},
        }
        for key in ("p50_ms", "p95_ms")
    ]
    _show_rows([*means, *times])
    for evaluation in evaluations:
        if evaluation.reranker is not None:
            say(f"[dim]{safe(f'{evaluation.name}: {evaluation.reranker}')}[/]")


def _show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table with a column for each key."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(rows[0]):
        table.add_column(safe(column.replace("_", " ")), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else safe(str(cell)) for cell in row.values()))
    common.out.print(table)


def _show_failures(result: Evaluation) -> None:
    failed = result.failures()
    total, first = pluralize(len(result.results), "question"), pluralize(max(result.ks), "result")
    say(f"Evidence missing from the first {first}: {len(failed)} of {total}.")
    for failure in failed[:_SHOWN]:
        say(f"[dim]{common.snippet(failure.question.text, 100)}[/]", indent=2)
