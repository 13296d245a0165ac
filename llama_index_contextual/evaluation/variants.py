"""Does context pay here? The variants of a project on its own documents."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index_contextual.config import ContextKind
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, compare
from llama_index_contextual.evaluation.generate import QUESTIONS, generate_questions
from llama_index_contextual.evaluation.price import price, price_of_all, require_affordable
from llama_index_contextual.evaluation.progress import ShowVariants, VariantProgress, told
from llama_index_contextual.evaluation.questions import Question
from llama_index_contextual.evaluation.run import KS, Questions, read
from llama_index_contextual.evaluation.sample import Sample, absent_files, draw
from llama_index_contextual.evaluation.workspace import Origin, Variant, workspace
from llama_index_contextual.models import load_llm
from llama_index_contextual.wording import counted

KINDS: tuple[ContextKind, ...] = ("none", "structural", "llm")
"""From the cheapest to the dearest."""


def compare_variants(
    origin: Origin,
    questions: Questions | None = None,
    *,
    variants: Sequence[ContextKind] = KINDS,
    sample: int | None = None,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    max_cost: float | None = None,
    number: int = QUESTIONS,
    seed: int = 0,
    progress: ShowVariants | None = None,
) -> Comparison:
    """Build the documents of a project with several kinds of context, ask all the same questions, and say which pays.

    The variants are built beside the project and removed afterwards; contexts and embeddings that are paid for stay in
    its ledger. Answers to a sample of the documents are easier to find than among all: compare the differences.

    Args:
        origin: The project.
        questions: Questions, or a file of them; None lets the project's LLM write some.
        variants: Kinds of context, at least two; the first one is what the others are compared with.
        sample: Documents to build, at most: those with evidence first; None takes all.
        ks: Numbers of results to look at.
        metric: What the recommendation goes by; None takes recall@10.
        max_cost: Dollars that contexts and embeddings may cost; nothing is built where the price is higher or unknown.
            Questions that the LLM writes are not counted.
        number: Questions to write when there are none.
        seed: Of the random numbers.
        progress: Called as the work proceeds; with the price before anything is built, where it may raise.

    Raises:
        InputError: A variant is unknown or there are fewer than two, no question has its evidence in the sample, or
            the cost would be higher than `max_cost`.
        ModelError: A variant or the questions need an LLM that cannot be made or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    kinds = _checked(variants)
    tell = progress or (lambda _: None)
    if questions is None:
        tell(VariantProgress(stage="questions", total=number))
        llm = origin.llm or load_llm(origin.config.llm, timeout=origin.config.call_timeout)
        asked: Sequence[Question] = generate_questions(origin.version, llm, number=number, seed=seed)
    else:
        asked = read(questions)
    drawn = draw(origin.version, asked, sample, seed=seed)
    configs = {kind: origin.config.changed(context=kind) for kind in kinds}
    dollars = price_of_all(origin, configs.values(), left_out=drawn.left_out)
    require_affordable(dollars, max_cost, drawn.documents)
    tell(VariantProgress(stage="price", dollars=dollars))
    with workspace(origin) as space:
        built: dict[str, Variant] = {}
        for kind in kinds:
            built[kind] = space.build(configs[kind], left_out=drawn.left_out, progress=told(tell, kind))
        return compare(
            built,
            drawn.questions,
            ks=ks,
            metric=metric,
            costs={kind: variant.cost for kind, variant in built.items()},
            notes=_notes(origin, asked, drawn, built, generated=questions is None),
            seed=seed,
            progress=lambda done, total: tell(VariantProgress(stage="ask", done=done, total=total)),
        )


def _checked(variants: Sequence[ContextKind]) -> Sequence[ContextKind]:
    unknown = [kind for kind in variants if kind not in KINDS]
    if unknown or len(set(variants)) < 2 or len(set(variants)) < len(variants):
        raise InputError(
            f"The variants are {', '.join(map(repr, variants)) or 'none'}: give two or three of none, structural, llm.",
            value=variants,
        )
    return variants


def _notes(
    origin: Origin, asked: Sequence[Question], sample: Sample, built: dict[str, Variant], *, generated: bool
) -> list[str]:
    total = len(origin.version.manifest.documents)
    chunks = next(iter(built.values())).chunks
    asked_of = f"{counted(chunks, 'chunk')}, {counted(len(sample.questions), 'question')}"
    notes = [f"{sample.documents} of {counted(total, 'document')}, {asked_of}."]
    if not sample.is_whole:
        outside = counted(len(asked) - len(sample.questions), "question")
        notes[0] += f" Left out for evidence outside the sample: {outside}."
        notes.append("Fewer documents compete in a sample: the differences count, not the levels.")
        prices = {name: price(origin, variant.config) for name, variant in built.items()}
        notes += [_whole(name, dollars, total) for name, dollars in prices.items() if dollars != 0]
    notes += absent_files(origin.version.manifest.documents, sample.questions)
    if generated:
        notes.append(f"The questions were written by {origin.llm_name}, each from one chunk.")
    notes += [
        f"The LLM failed for {counted(variant.failures, 'chunk')} of {name!r}: there the context is structural."
        for name, variant in built.items()
        if variant.failures
    ]
    return notes


def _whole(name: str, dollars: float | None, documents: int) -> str:
    more = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
    return f"{name!r} for all {documents} documents would cost {more} more."
