"""The command `evaluate`, which measures a project, compares variants, or sweeps over settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.table import Table

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, Name
from llama_index_contextual.cli.terminal import err, out, safe, say, say_json, snippet, wants_json
from llama_index_contextual.errors import InputError

if TYPE_CHECKING:
    from llama_index_contextual.answering.batch import Predictions
    from llama_index_contextual.evaluation.compare import Comparison, Sweep, VariantProgress
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.report import Result
    from llama_index_contextual.evaluation.run import Evaluation
    from llama_index_contextual.project.project import Project

commands = Commands("Questions")

_SHOWN_ANSWERS = 5
_LONG = 3
"""Ratio of words in answers to words in expected answers above which a shorter style is suggested."""


@commands.command("evaluate")
def evaluate_project(
    name: Name,
    questions: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="JSON lines file of questions with evidence; without it, the LLM writes some."
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="KINDS", help="Kinds of context to compare: none,structural,llm.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Chunk sizes to try in each mode: 400,800,1200.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Maximum number of documents for --compare and --sweep.")
    ] = None,
    ks: Annotated[
        str, typer.Option("--k", metavar="NUMBERS", help="Numbers of results for the metrics.")
    ] = "1,5,10,20",
    number: Annotated[
        int, typer.Option(metavar="NUMBER", help="Number of questions to write if no file is given.")
    ] = 50,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="File to save the written questions to.")] = None,
    answers: Annotated[
        bool,
        typer.Option(
            "--answers", help="Let the LLM answer the questions, and compare with the `answers` in the file instead."
        ),
    ] = False,
    report: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Report file to write: .html, .json or .csv; may be repeated. With --answers .tsv for ARES.",
        ),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Maximum cost of --compare and --sweep in dollars.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation before spending money.")
    ] = False,
) -> None:
    """Measure how well a project finds the evidence for questions, and whether contexts pay off."""
    from llama_index_contextual.evaluation.questions import absent_files, load_questions, write_questions
    from llama_index_contextual.evaluation.report import check_report, to_dict, write_report
    from llama_index_contextual.evaluation.run import evaluate
    from llama_index_contextual.index import files

    project = common.open_project(name)
    if answers:
        if compare is not None or sweep is not None:
            raise InputError("--answers measures the project as it is: omit --compare and --sweep.")
        _evaluate_answers(project, questions, report or (), yes=yes)
        return
    numbers = _numbers(ks, "--k")
    for path in report or ():
        check_report(path)
    if save is not None:
        files.require_folder(save)
    loaded = load_questions(questions) if questions is not None else _generate(project, number)
    if questions is None and save is not None:
        write_questions(loaded, save)
    with _Steps(ask=not yes and max_cost is None, sample=sample) as steps:
        building: dict[str, Any] = {"sample": sample, "max_cost": max_cost, "progress": steps.show}
        result: Result
        if sweep is not None:
            from llama_index_contextual.evaluation.compare import sweep_variants

            building |= {"chunk_sizes": _numbers(sweep, "--sweep"), "contexts": _names(compare or "")}
            result = common.interruptible(project, lambda: sweep_variants(project, loaded, top_ks=numbers, **building))
        elif compare is not None:
            from llama_index_contextual.evaluation.compare import compare_variants

            building["variants"] = _names(compare)
            result = common.interruptible(project, lambda: compare_variants(project, loaded, ks=numbers, **building))
        else:
            for note in absent_files(project.documents(), loaded):
                say(f"[yellow]{note}[/]", to=err)
            shown = None if wants_json() else steps.show_questions
            result = evaluate(project, loaded, name=name, ks=numbers, progress=shown)
    report_paths = [write_report(result, path) for path in report or ()]
    if wants_json():
        say_json(to_dict(result))
        return
    _show(result)
    for path in report_paths:
        say(f"Wrote {safe(str(path))}.", to=err)


def _evaluate_answers(project: Project, questions: Path | None, reports: Sequence[Path], *, yes: bool) -> None:
    """Answer the questions of a file and print exact match and F1."""
    from llama_index_contextual.answering.batch import answer_many, check_predictions_file
    from llama_index_contextual.evaluation.questions import load_qa

    if questions is None:
        raise InputError("--answers needs a file of questions with their `answers`: name it after the project.")
    for path in reports:
        check_predictions_file(path)
    items = load_qa(questions)
    engine = project.as_query_engine()
    common.confirm(f"Let {engine.answer_stream.name} answer {pluralize(len(items), 'question')}?", yes=yes)
    predictions = answer_many(engine, items)
    for path in reports:
        predictions.write(path)
    if wants_json():
        say_json(predictions.to_dict())
        return
    summary = predictions.summary()
    for label, key in (("exact match", "exact"), ("F1", "f1")):
        value = summary[key]
        say(f"{label}: {'no question has a correct answer' if value is None else f'{100 * value:.1f} per cent'}")
    say(
        f"{pluralize(summary['questions'], 'question')}: {summary['not_found']} not found, {summary['errors']} failed,"
        f" {summary['failed_retrievals']} without the evidence among the passages"
    )
    if predictions.usage is not None:
        say(f"[dim]{safe(str(predictions.usage))}[/]")
    _show_answers(predictions, project.config.style)
    for row in predictions.rows:
        if row.error is not None:
            say(f"[yellow]{snippet(row.qa.question, 60)}[/]: {safe(row.error)}", to=err)
    for path in reports:
        say(f"Wrote {safe(str(path))}.", to=err)


def _show_answers(predictions: Predictions, style: str) -> None:
    """Print the first wrong answers with the expected ones, and a hint if answers are too long."""
    wrong = [row for row in predictions.rows if row.exact == 0 and row.error is None]
    for row in wrong[:_SHOWN_ANSWERS]:
        say(f"[bold]{snippet(row.qa.question, 100)}[/]")
        say(f"expected: {snippet(' | '.join(row.qa.answers), 200)}", indent=2)
        say(f"answered: {snippet(row.answer, 200)}", indent=2)
    if len(wrong) > _SHOWN_ANSWERS:
        say(f"[dim]… and {pluralize(len(wrong) - _SHOWN_ANSWERS, 'more answer')} unlike the expected ones[/]")
    words = sum(len(row.answer.split()) for row in wrong)
    if words > _LONG * sum(len(max(row.qa.answers, key=len).split()) for row in wrong) and style != "persona":
        say(
            "The answers are much longer than the expected ones, which lowers both figures. For short answers:"
            " LLAMA_INDEX_CONTEXTUAL_STYLE=persona in the environment, or `configure NAME style=persona`.",
            to=err,
        )


class _Steps:
    """Progress display on standard error that asks for confirmation before money is spent."""

    def __init__(self, *, ask: bool, sample: int | None) -> None:
        self._ask, self._sample, self._last = ask, sample, ""
        self._status = err.status("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, progress: VariantProgress) -> None:
        """Show the progress of a step; a price above zero must be confirmed."""
        if progress.stage == "price":
            self._price(progress.dollars)
        elif progress.stage == "build":
            self._say(f"Building {progress.name!r} …", pluralize(progress.done, "chunk"))
        elif progress.stage == "ask":
            self.show_questions(progress.done, progress.total)

    def show_questions(self, done: int, total: int) -> None:
        """Show the number of processed questions."""
        self._say("Evaluating the questions …", f"{done:,} of {pluralize(total, 'question')}")

    def _say(self, step: str, far: str) -> None:
        if step != self._last:
            say(f"[dim]{safe(step)}[/]", to=err)
            self._last = step
        if err.is_terminal:
            self._status.update(f"[dim]{far}[/]")
            self._status.start()

    def _price(self, dollars: float | None) -> None:
        if dollars == 0:
            return
        shown = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
        say(f"Contexts and embeddings will cost {shown}; the ledger keeps all paid results.", to=err)
        if self._sample is None:
            say("[dim]This is for all documents: --sample 20 uses only twenty of them.[/]", to=err)
        if self._ask:
            typer.confirm("Continue?", abort=True, err=True)


def _generate(project: Project, number: int) -> Sequence[Question]:
    from llama_index_contextual.evaluation.questions import generate_questions

    say(f"[dim]The LLM is writing {pluralize(number, 'question')} …[/]", to=err)
    return generate_questions(project.live_version, project.state.answering_llm(), number=number)


def _names(text: str) -> list[Any]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str, option: str) -> list[int]:
    parts = _names(text)
    if not parts or not all(part.isascii() and part.isdigit() and int(part[:9]) > 0 for part in parts):
        raise InputError(f"{option} is {text!r}: pass positive whole numbers, separated by commas.", value=text)
    return [int(part[:9]) for part in parts]


def _show(result: Result) -> None:
    from llama_index_contextual.evaluation.compare import Comparison
    from llama_index_contextual.evaluation.run import Evaluation

    if isinstance(result, Comparison):
        _show_comparison(result)
    elif isinstance(result, Evaluation):
        _show_figures([result])
        _show_failures(result)
    else:
        _show_sweep(result)


def _show_comparison(result: Comparison) -> None:
    for note in result.notes:
        say(f"[dim]{safe(note)}[/]")
    _show_figures(result.evaluations)
    for difference in result.differences():
        mark = "[bold green]*[/] " if difference.significant else "  "
        say(f"{mark}{safe(f'{difference.variant} − {difference.baseline}, {difference.metric}: {difference}')}")
    for name, cost in result.costs.items():
        if cost != 0:
            say(f"  {safe(name)}: contexts {'of unknown cost' if cost is None else f'${cost:.4f}'}")
    say(f"[bold]{safe(result.recommendation)}[/]")


def _show_figures(evaluations: Sequence[Evaluation]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("per cent")
    for evaluation in evaluations:
        table.add_column(safe(evaluation.name), justify="right")
    summaries = [evaluation.summary() for evaluation in evaluations]
    for metric in evaluations[0].metrics:
        table.add_row(metric, *(f"{100 * evaluation.mean(metric):.1f}" for evaluation in evaluations))
    for label, key in (("p50, ms", "p50_ms"), ("p95, ms", "p95_ms")):
        table.add_row(label, *(f"{summary[key]:.1f}" for summary in summaries))
    out.print(table)


def _show_failures(result: Evaluation) -> None:
    failed = result.failures()
    total, first = pluralize(len(result.results), "question"), pluralize(max(result.ks), "result")
    say(f"Evidence missing from the first {first}: {len(failed)} of {total}.")
    for failure in failed[:5]:
        wrong = next(iter(failure.hard_negatives(max(result.ks))), None)
        result_line = f"first result {wrong.source}" if wrong else "no results"
        say(f"[dim]{snippet(failure.question.text, 100)}: {safe(result_line)}[/]", indent=2)


def _show_sweep(result: Sweep) -> None:
    for note in result.notes:
        say(f"[dim]{safe(note)}[/]")
    table = Table(box=None, pad_edge=False)
    for column in ("context", "chunk size", "mode", "top k", "recall", "precision", "nDCG", "tokens", "p50, ms"):
        table.add_column(column, justify="left" if column in ("context", "mode") else "right")
    best = result.best()
    for row in result.rows:
        figures = [f"{100 * row.figures[name]:.1f}" for name in ("recall", "precision", "ndcg")]
        cells = [row.context, str(row.chunk_size), row.mode, str(row.top_k), *figures]
        style = "bold" if row == best else None
        table.add_row(*cells, f"{row.figures['tokens']:,.0f}", f"{row.figures['p50_ms']:.1f}", style=style)
    out.print(table)
