"""For a user's own pytest: retrieval must stay as good as it is."""

from __future__ import annotations

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.run import Evaluation, Questions, Retrievable, evaluate
from llama_index_contextual.wording import counted

_SHOWN = 5


def assert_recall(retriever: Retrievable, questions: Questions, *, k: int = 10, at_least: float) -> Evaluation:
    """Fail a test when the mean recall@k of a question set is too low; the message lists the worst questions.

    Args:
        retriever: A project, or any LlamaIndex retriever.
        questions: Questions, or a file of them.
        k: Results to look at.
        at_least: Between 0 and 1.

    Returns:
        The evaluation, for further checks.

    Raises:
        AssertionError: The recall is lower.
        InputError: `at_least` is not between 0 and 1, or the questions cannot be read.

    Example:
        >>> assert_recall(project, "questions.jsonl", k=10, at_least=0.9)  # doctest: +SKIP
    """
    if not 0 <= at_least <= 1:
        raise InputError(f"at_least is {at_least}: recall is between 0 and 1.", value=at_least)
    evaluation = evaluate(retriever, questions, ks=[k])
    found = evaluation.mean(f"recall@{k}")
    if found < at_least:
        raise AssertionError(_message(evaluation, found, k, at_least))
    return evaluation


def _message(evaluation: Evaluation, found: float, k: int, at_least: float) -> str:
    failed = evaluation.failures(k)
    missed = f"{len(failed)} of {counted(len(evaluation.results), 'question')}, the worst first"
    lines = [f"recall@{k} is {found:.4f}, below {at_least}; without all evidence: {missed}:"]
    for result in failed[:_SHOWN]:
        instead = next(iter(result.hard_negatives(k)), None)
        came = f"first came {instead.source}" if instead else "nothing was found"
        missing = f"{metrics.recall(result.ranks, k):.2f} of its evidence found"
        lines.append(f"  {result.question.id or '-'} {result.question.text[:120]!r}: {missing}; {came}")
    return "\n".join(lines)
