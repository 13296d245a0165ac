"""Fit confidence and relevance, and check their promises: `python -m tests.benchmarks.relevance --data DATA`.

Confidence is fitted to questions that the documents answer and questions that they do not answer. Questions about the
contracts are asked without the text up to the first semicolon, which names the contract; `named` includes it. The
answerable questions of each set are searched in all files and within the file that contains the answer, and compared
with the following unanswerable questions:

- `others`: 200 questions from other sets, in all files, and within randomly chosen files (seed 21).
- `removed`: half of the documents (every second one by name) are omitted from the project; questions about them are
  compared with questions about the rest. `missing` are those of them with a word that only omitted documents contain.

All sets have the same weight. The model and the thresholds used for a set are always fitted to the other sets. The
AUROC of the greatest cosine similarity alone is shown in brackets. Relevance is measured for the first 20 hits of every
question. A hit is relevant if it contains any of the evidence. The AUROC of the rank alone is shown for comparison. The
last lines are the constants in `search/confidence.py`, fitted to all sets.

With --embedding, a transformer on this machine is measured (--chunk-size 180 for a model that reads 256 tokens), with
the constants of the package, and nothing is fitted. The filings are then omitted, because encoding them takes long.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.confidence import (
    MODELS,
    RANKED,
    SCORED_HITS,
    Logistic,
    Models,
    query_features,
    shares_of,
    unknown_words,
)
from llama_index_contextual.search.rank import semantic_list
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import Query, SearchSettings, hits_of, rank, with_best_units
from tests.benchmarks.calibration import Array, Features, auroc, calibration_error, fit, probabilities, separation
from tests.benchmarks.quality import options, settings_of
from tests.benchmarks.sets import SENTENCE_SETS, SHORT_SETS, QuestionSet, covers, load

SEED, OTHERS = 21, 200
LOW, HIGH = 0.03, 0.025
"""Share of answerable questions below "low", and of other sets' questions that reach "high", in the sets of a fit."""
PROMISE = 0.05
"""Share of answerable questions that may be "low" in sets left out; with more, a kind of search has no levels."""
RIDGE = 60.0
"""Of the fit of relevance: what is this near to 0 carries over best to a set left out; from 5 to 150 little differs."""

CONFIDENCE: Mapping[Mode, Sequence[str]] = {"hybrid": ("near", "cover"), "semantic": ("near",), "lexical": ("cover",)}
RELEVANCE = ("share", "confidence")
PAIRS = (("all", "others"), ("file", "others in file"), ("kept", "removed"), ("named kept", "named removed"))
"""Answerable questions, and those that they are told from."""

FIRST, KEPT_FIRST, KEPT = 5, 0.975, 0.91
"""Number of hits that the command line shows; shares of the evidence among them, and among 20 hits, that a cut keeps in
the sets of a fit.
"""
CUTS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05)

INSIDE_ONLY = "manuals"
"""The set whose questions are not about one file, unless they are limited to it."""

NAMED = "contracts"
"""The set whose questions name their document: without the name, what another document says answers them as well."""


@dataclass(frozen=True)
class Asked:
    """A question of a set.

    Attributes:
        text: The question.
        named: The question with the name of its document.
        documents: Names of the documents that answer it.
        evidence: Evidence as in `sets`.
    """

    text: str
    named: str
    documents: Sequence[str]
    evidence: list[dict[str, Any]]


@dataclass(frozen=True)
class Samples:
    """Features of questions, and shares and outcomes of their hits, which are numbered by question.

    `has_unknown_name` says which questions contain a name that no document contains.
    """

    questions: Features
    has_unknown_name: Array
    cosine: Array
    shares: Array
    relevant: Array
    ranks: Array
    numbers: Array


def questions_of(data: Path, questions: QuestionSet) -> list[Asked]:
    """Return the questions of a set, those of conversations as people wrote them to stand alone."""
    rows = (data / questions.name / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = []
    for one, row in zip(questions.questions, map(json.loads, rows), strict=True):
        named = row.get("rewrite", one.text)
        text = named.partition(";")[2].strip() if questions.name == NAMED else named
        documents = {item.get("file") or item["id"].rpartition("_chunk_")[0] for item in one.evidence}
        asked.append(Asked(text, named, sorted(documents), one.evidence))
    return asked


def others_of(sets: Mapping[str, Sequence[Asked]], name: str) -> list[str]:
    """Return questions of the other sets, about as many of each, as they are written there."""
    chosen = random.Random(SEED)
    pools = [[one.named for one in asked] for other, asked in sets.items() if other != name]
    each = math.ceil(OTHERS / len(pools))
    return [text for pool in pools for text in chosen.sample(pool, min(each, len(pool)))][:OTHERS]


def project_of(
    manager: ProjectManager, questions: QuestionSet, half: bool, config: ProjectConfig, model: BaseEmbedding | None
) -> Project:
    """Return a project of all documents of a set, or without those at odd places by name."""
    name = f"{questions.name}-{'half' if half else 'full'}"
    if name in manager.list():
        return manager.load(name, embed_model=model)
    inputs: list[Any] = list(questions.inputs())
    if not questions.folder:
        for node in inputs:
            node.metadata["file_name"] = node.ref_doc_id
    names = sorted({one.metadata["file_name"] for one in inputs})
    kept = set(names[::2] if half else names)
    project = manager.create(name, config.changed(context="structural"), embed_model=model)
    report = project.ingest([one for one in inputs if one.metadata["file_name"] in kept])
    if report.failures:
        raise RuntimeError(f"{name}: {len(report.failures)} chunks failed")
    return project


def ask(project: Project, mode: Mode, asked: Sequence[tuple[str, str | None, list[dict[str, Any]]]]) -> Samples:
    """Ask a project questions, each with the file that it is limited to, and its evidence."""
    current = project.state.live.current()
    embedder, index = current.embedder, current.index
    answers, unknown, cosine, shares, relevant, ranks, numbers = [], [], [], list[float](), [], [], []
    for number, (text, file, evidence) in enumerate(asked):
        filters = MetadataFilters(filters=[MetadataFilter(key="file_name", value=file)]) if file else None
        settings = SearchSettings.of(project.config, mode=mode, k=SCORED_HITS, filters=filters)
        depth = settings.fusion.candidates if mode == "hybrid" else RANKED
        semantic = None
        if mode != "lexical":
            semantic = semantic_list(index, embedder.unit([text]), depth, filters, model=embedder.name)
        ranking = rank(Query.of(text), semantic, index, settings, mode, depth, model=embedder.name)
        ranking, _, covered, *_ = with_best_units(index, ranking, text, results=SCORED_HITS, rerank=True)
        of_hits = ranking.evidence(SCORED_HITS)
        first = index.fetch(ranking.hits.rows[:SCORED_HITS].tolist())
        chunks = [RetrievedChunk.of_hit(hit) for hit in hits_of(ranking, first, of_hits)]
        answers.append(query_features(ranking, covered, is_filtered=file is not None))
        words = [] if ranking.terms is None else unknown_words(ranking.terms, text)
        unknown.append(any(word.is_name for word in words))
        cosine.append(float(of_hits.scores["semantic"].max(initial=0.0)) if "semantic" in of_hits.scores else 0.0)
        shares += shares_of(ranking, covered)[: len(chunks)]
        relevant += [float(any(covers(chunk, item) for item in evidence)) for chunk in chunks]
        ranks += [chunk.rank for chunk in chunks]
        numbers += [number] * len(chunks)
    return Samples(
        {name: np.array([answer[name] for answer in answers]) for name in answers[0]},
        np.array(unknown),
        np.array(cosine),
        np.array(shares),
        np.array(relevant),
        np.array(ranks, dtype=np.float64),
        np.array(numbers, dtype=np.int64),
    )


def measure(
    whole: Project, half: Project, mode: Mode, name: str, asked: Sequence[Asked], others: Sequence[str]
) -> dict[str, Samples]:
    """Ask everything of one set."""
    chosen = random.Random(SEED)
    files = [chosen.choice(asked).documents[0] for _ in others]
    kept = _files(half)
    inside = [one for one in asked if kept.intersection(one.documents)]
    outside = [one for one in asked if not kept.intersection(one.documents)]
    samples = {
        "all": ask(whole, mode, [(one.text, None, one.evidence) for one in asked]),
        "file": ask(whole, mode, [(one.text, one.documents[0], one.evidence) for one in asked]),
        "others": ask(whole, mode, [(text, None, []) for text in others]),
        "others in file": ask(whole, mode, [(text, file, []) for text, file in zip(others, files, strict=True)]),
        "kept": ask(half, mode, [(one.text, None, one.evidence) for one in inside]),
        "removed": ask(half, mode, [(one.text, None, []) for one in outside]),
    }
    if missing := [one.named for one in outside if _has_missing_word(one.named, whole, half)]:
        samples["missing"] = ask(half, mode, [(text, None, []) for text in missing])
    if name == NAMED:
        samples["named"] = ask(whole, mode, [(one.named, None, one.evidence) for one in asked])
        samples["named kept"] = ask(half, mode, [(one.named, None, one.evidence) for one in inside])
        samples["named removed"] = ask(half, mode, [(one.named, None, []) for one in outside])
    return samples


def _has_missing_word(text: str, whole: Project, half: Project) -> bool:
    of_whole, of_half = (project.state.live.current().index.lexical for project in (whole, half))
    if of_whole is None or of_half is None:
        return False
    terms = of_whole.query(text)
    return any(of_half.holders(term) == 0 for term in terms.known if term not in terms.variants)


def _files(project: Project) -> set[str]:
    store = project.state.live.current().docstore
    return {node.metadata["file_name"] for node in store.iterate()}


# ---- fits ------------------------------------------------------------------------------------------------------------

Sets = Mapping[str, Mapping[str, Samples]]


def pairs_of(name: str, samples: Mapping[str, Samples]) -> list[tuple[str, str]]:
    """Return the pairs of a set that take part in a fit: without its name, no question has lost its document."""
    return [pair for pair in PAIRS if pair[0] in samples and (name, pair[0]) != (NAMED, "kept")]


def confidence_of(sets: Sets, mode: Mode) -> Logistic:
    """Return the model of confidence fitted to some sets; each pair counts alike, and so does each side of it."""
    groups = []
    for name, samples in sets.items():
        for pair in pairs_of(name, samples):
            inside, outside = (samples[part].questions for part in pair)
            sizes = [len(part["cover" if mode == "lexical" else "near"]) for part in (inside, outside)]
            repeats = [max(1, round(max(sizes) / size)) for size in sizes]
            features = {
                key: np.concatenate([np.tile(inside[key], repeats[0]), np.tile(outside[key], repeats[1])])
                for key in inside
            }
            groups.append((features, np.repeat([1.0, 0.0], np.multiply(sizes, repeats))))
    return fit(groups, CONFIDENCE[mode])


def limits_of(sets: Sets, model: Logistic) -> tuple[float, float]:
    """Return the limits of the levels "low" and "high" for some sets, each of which counts alike."""
    answered = [probabilities(model, samples[part].questions) for samples in sets.values() for part in ("all", "file")]
    unanswered = [
        probabilities(model, samples[part].questions)
        for samples in sets.values()
        for part in ("others", "others in file")
    ]
    return _quantile(answered, LOW), _quantile(unanswered, 1 - HIGH)


def _quantile(parts: Sequence[Array], share: float) -> float:
    """Return a quantile of samples that count alike."""
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]) / weights.sum(), share)])


def models_of(sets: Sets, mode: Mode) -> Models:
    """Return the models and limits fitted to some sets, each of which counts alike."""
    confidence = confidence_of(sets, mode)
    low, high = limits_of(sets, confidence)
    models = Models(confidence, Logistic(0.0, {}), 0.0, low, high)
    groups = []
    for parts in map(_judged, sets.values()):
        features = [hit_features(part, models) for part in parts]
        together = {key: np.concatenate([of_part[key] for of_part in features]) for key in RELEVANCE}
        groups.append((together, np.concatenate([part.relevant for part in parts])))
    models = replace(models, relevance=fit(groups, RELEVANCE, ridge=RIDGE))
    return replace(models, cut=cut_of(sets, models))


def confidences(samples: Samples, models: Models) -> Array:
    """Return the confidence of each question, which does not reach the level "high" if a name is unknown."""
    values = probabilities(models.confidence, samples.questions)
    return np.where(samples.has_unknown_name, np.minimum(values, np.nextafter(models.high or 1.0, 0.0)), values)


def hit_features(samples: Samples, models: Models) -> dict[str, Array]:
    """Return the features of hits."""
    values = confidences(samples, models)
    return {"share": samples.shares, "confidence": np.log(values / (1 - values))[samples.numbers]}


def relevances(samples: Samples, models: Models) -> Array:
    """Return the relevance of each hit."""
    values = probabilities(models.relevance, hit_features(samples, models))
    return np.minimum(values, confidences(samples, models)[samples.numbers])


def _judged(samples: Mapping[str, Samples]) -> tuple[Samples, Samples]:
    """Return the samples of a set whose hits are judged: questions that name their document if they can."""
    return samples.get("named", samples["all"]), samples.get("named removed", samples["removed"])


# ---- tables ----------------------------------------------------------------------------------------------------------


def show(sets: Sets, mode: Mode, *, is_fitted: bool) -> None:
    """Print how the fits on the other sets hold for each one, or how the constants of the package do."""
    print(f"{mode}: AUROC (greatest cosine alone), and answerable questions that are low, others that are low and high")
    areas: dict[str, list[tuple[float, float]]] = {name: [] for name in (*(pair[0] for pair in PAIRS), "missing")}
    cuts: list[list[float]] = []
    counts: dict[str, list[int]] = {"answerable": [0, 0], "others": [0, 0], "high": [0, 0], "missing": [0, 0]}
    for name, samples in sets.items():
        rest = {other: part for other, part in sets.items() if other != name}
        models = models_of(rest, mode) if is_fitted else MODELS[mode]
        low, high = models.low or 0.0, models.high or 1.0
        for answerable, unanswerable in PAIRS:
            if answerable not in samples:
                continue
            inside, outside = samples[answerable], samples[unanswerable]
            values, strange = confidences(inside, models), confidences(outside, models)
            area, plain = separation(values, strange), separation(inside.cosine, outside.cosine)
            areas[answerable].append((area, plain))
            line = f"  {name:14s} {answerable:10s} / {unanswerable:14s} {area:.3f} ({plain:.3f})"
            if answerable in ("all", "file"):
                below, beyond = int(np.sum(values < low)), int(np.sum(strange < low))
                for key, hits, size in (
                    ("answerable", below, len(values)),
                    ("others", beyond, len(strange)),
                    ("high", int(np.sum(strange >= high)), len(strange)),
                ):
                    counts[key][0] += hits
                    counts[key][1] += size
                line += (
                    f"   low {_share(below, len(values))}; others low {_share(beyond, len(strange))},"
                    f" high {np.mean(strange >= high):.0%}; answerable high {np.mean(values >= high):.0%}"
                )
            print(line, flush=True)
        if (missing := samples.get("missing")) is not None:
            values, rest_of_set = confidences(missing, models), samples.get("named kept", samples["kept"])
            high_values = int(np.sum(values >= high))
            area, plain = (
                separation(confidences(rest_of_set, models), values),
                separation(rest_of_set.cosine, missing.cosine),
            )
            print(f"      missing: AUROC {area:.3f} ({plain:.3f}), high {_share(high_values, len(values))}")
            areas["missing"].append((area, plain))
            counts["missing"][0] += high_values
            counts["missing"][1] += len(values)
        _show_relevance(samples, models)
        cuts += _show_cut(name, samples, models)
    for answerable, unanswerable in (*PAIRS, ("missing", "its rest")):
        if areas[answerable]:
            ours, plain = np.mean(areas[answerable], axis=0)
            print(f"  mean of {answerable} / {unanswerable}: {ours:.3f} ({plain:.3f})")
    removed = [pair for key in ("kept", "named kept") for pair in areas[key]]
    print(f"  mean of all removed: {np.mean(removed, axis=0)[0]:.3f} ({np.mean(removed, axis=0)[1]:.3f})")
    print(f"  mean above the cut: {_cut_text(np.mean(cuts, axis=0).tolist())}")
    for key, text in (
        ("answerable", "answerable that are low"),
        ("others", "others low"),
        ("high", "others high"),
        ("missing", "missing high"),
    ):
        print(f"  pooled, {text}: {_share(*counts[key])}")
    if is_fitted:
        _show_curve(sets, mode)
        _show_constants(sets, mode, counts["answerable"][0] <= PROMISE * counts["answerable"][1])


def _share(hits: int, size: int) -> str:
    """Return a count, its share, and the 95 % interval by Wilson."""
    z, share = 1.96, hits / size
    centre = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    return f"{hits}/{size} {share:.1%} ({max(0.0, centre - half):.1%} to {centre + half:.1%})"


def _show_curve(sets: Sets, mode: Mode) -> None:
    """Print what share of other questions a limit finds, by the share of answerable questions that it costs."""
    model = confidence_of(sets, mode)
    answered = [probabilities(model, samples[part].questions) for samples in sets.values() for part in ("all", "file")]
    strange = [
        probabilities(model, samples[part].questions)
        for samples in sets.values()
        for part in ("others", "others in file")
    ]
    points = ((cost, _quantile(answered, cost)) for cost in (0.01, 0.02, 0.03, 0.05, 0.1, 0.2))
    shares = (f"{cost:.1%}: {np.mean([np.mean(part < limit) for part in strange]):.0%}" for cost, limit in points)
    print(f"  answerable below a limit, and others below it (fitted on all): {', '.join(shares)}")


def _show_relevance(samples: Mapping[str, Samples], models: Models) -> None:
    parts = _judged(samples)
    estimates = [relevances(part, models) for part in parts]
    values, truth = np.concatenate(estimates), np.concatenate([part.relevant for part in parts])
    ranks = -np.concatenate([part.ranks for part in parts])
    first = [float(estimate[part.ranks == 1].mean()) for estimate, part in zip(estimates, parts, strict=True)]
    right = parts[0].relevant[parts[0].ranks == 1].mean()
    print(
        f"      relevance: AUROC {auroc(truth, values):.3f} (rank alone {auroc(truth, ranks):.3f}), calibration error"
        f" {calibration_error(truth, values):.3f}; first hit {first[0]:.2f} (right {right:.2f}), removed {first[1]:.2f}"
    )


def kept_above(cut: float, samples: Samples, models: Models) -> tuple[float, float]:
    """Return the shares of the evidence among the first 5 and 20 hits that are above a cut."""
    is_kept = relevances(samples, models) >= cut
    relevant, first = samples.relevant > 0, samples.ranks <= FIRST
    return float(np.mean(is_kept[relevant & first])), float(np.mean(is_kept[relevant]))


def searches_of(name: str, samples: Mapping[str, Samples]) -> list[tuple[Samples, Samples]]:
    """Return the questions of a set and the other questions, over all files and within one."""
    pairs = [(samples.get("named", samples["all"]), samples["others"]), (samples["file"], samples["others in file"])]
    return pairs[name == INSIDE_ONLY :]


def cut_of(sets: Sets, models: Models) -> float:
    """Return the largest cut that keeps enough of the evidence in some sets, each of which counts alike."""
    inside = [pair[0] for name, samples in sets.items() for pair in searches_of(name, samples)]

    def keeps_enough(cut: float) -> bool:
        first, every = np.mean([kept_above(cut, samples, models) for samples in inside], axis=0)
        return bool(first >= KEPT_FIRST and every >= KEPT)

    return max(filter(keeps_enough, CUTS), default=CUTS[0])


def _show_cut(name: str, samples: Mapping[str, Samples], models: Models) -> list[list[float]]:
    """Print and return what is above the cut, over all files and within one.

    These are the shares of the evidence among the first 5 and 20 hits, the share of other questions without any hit,
    and the number of hits of a question that is answered.
    """
    rows = []
    for inside, outside in searches_of(name, samples):
        best = np.zeros(len(outside.cosine))
        np.maximum.at(best, outside.numbers, relevances(outside, models))
        hits = np.sum(relevances(inside, models) >= models.cut) / len(inside.cosine)
        rows.append([*kept_above(models.cut, inside, models), float(np.mean(best < models.cut)), float(hits)])
    print(f"      above {models.cut}: {'; within a file '.join(map(_cut_text, rows))}")
    return rows


def _cut_text(row: Sequence[float]) -> str:
    first, kept, nothing, hits = row
    return f"{first:.1%} of the first {FIRST}, {kept:.1%} of 20, others without {nothing:.0%}, {hits:.1f} hits"


def _show_constants(sets: Sets, mode: Mode, keeps_promise: bool) -> None:
    models = models_of(sets, mode)
    low, high = (f"{limit:.3f}" if keeps_promise else "None" for limit in (models.low, models.high))
    print(f'    "{mode}": Models(')
    for label, model in (("confidence", models.confidence), ("relevance", models.relevance)):
        values = ", ".join(f'"{name}": {value:.4f}' for name, value in model.coefficients.items())
        print(f"        {label}=Logistic({model.intercept:.4f}, {{{values}}}),")
    print(f"        cut={models.cut},\n        low={low},\n        high={high},\n    ),", flush=True)


def main() -> None:
    """Fit and print."""
    parser = options(__doc__)
    parser.set_defaults(sets=[*SHORT_SETS, *SENTENCE_SETS])
    parser.add_argument("--projects", type=Path, help="folder for the projects, kept for a later run")
    parser.add_argument("--modes", nargs="*", choices=get_args(Mode), default=list(get_args(Mode)))
    arguments: argparse.Namespace = parser.parse_args()
    config, embed_model = settings_of(arguments)
    names = [name for name in arguments.sets if embed_model is None or name != "filings"]
    sets = {name: load(arguments.data, name) for name in names}
    asked = {name: questions_of(arguments.data, questions) for name, questions in sets.items()}
    with tempfile.TemporaryDirectory() as temporary:
        manager = ProjectManager(arguments.projects or Path(temporary))
        projects = {
            name: [project_of(manager, one, half, config, embed_model) for half in (False, True)]
            for name, one in sets.items()
        }
        for mode in arguments.modes:
            measured = {
                name: measure(*projects[name], mode, name, asked[name], others_of(asked, name)) for name in sets
            }
            show(measured, mode, is_fitted=embed_model is None)


if __name__ == "__main__":
    main()
