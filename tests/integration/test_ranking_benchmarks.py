"""The benchmarks of ranking compare question by question, and rank as a project does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.search.rerank import LLM_RERANK
from tests.benchmarks.quality import differences, row
from tests.benchmarks.replay import ReplayingLLM, load_orders, passage_key
from tests.benchmarks.sets import Question, score
from tests.benchmarks.settings import DEFAULT, print_cost_of_one, print_left_out, variants
from tests.benchmarks.trials import Trials


def test_a_row_has_all_measures_in_per_cent() -> None:
    # recall of both questions at 1: (1 + 0) / 2; at 5: (1 + 1/2) / 2; nDCG: (1 + (1/log2(4)) / (1 + 1/log2(3))) / 2
    assert row("set none hybrid", [[1], [3, None]]).split()[3:] == ["50.0", "75.0", "75.0", "75.0", "65.3"]


def test_differences_are_paired_and_their_interval_contains_the_mean() -> None:
    ranks, baseline = [[1]] * 30 + [[None]] * 10, [[None]] * 10 + [[1]] * 30
    assert differences(ranks, baseline, ["R@1"]).startswith("R@1 +0.0 (-")
    assert differences(ranks, ranks, ["nDCG@10"]) == "nDCG@10 +0.0 (+0.0 to +0.0, p 1)"
    with pytest.raises(ValueError, match="zip"):
        differences(ranks, baseline[1:])


def test_the_cost_of_one_setting_and_the_choice_without_a_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert variants(["fusion"]) == {
        DEFAULT: {},
        "fusion=rrf": {"fusion": "rrf", "semantic_weight": 0.5},
    }
    results = {
        ("one", "none", "local"): {DEFAULT: np.asarray([50.0, 50.0]), "b": np.asarray([60.0, 60.0])},
        ("two", "none", "other"): {DEFAULT: np.asarray([52.0, 52.0]), "b": np.asarray([51.0, 51.0])},
    }
    print_cost_of_one([DEFAULT, "b"], results)
    print_left_out([DEFAULT, "b"], results)
    assert capsys.readouterr().out.splitlines() == [
        "best for all: b",
        "best for local: b; b loses 0.00, default loses 10.00",
        "best for other: default; b loses 1.00, default loses 0.00",
        "without one: default is chosen; on one +0.00 (+0.00 to +0.00, p 1)",
        "without two: b is chosen; on two -1.00 (-1.00 to -1.00, p 0.5)",
    ]


def test_trials_rank_as_the_project_does(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create(
        "trials", ProjectConfig.local(context="none", chunk_size=60, chunk_overlap=6)
    )
    subjects = ("pump", "valve", "meter", "filter")
    project.ingest(
        [
            Document(text=" ".join(f"The {one} {n} of {other}." for n in range(30)), id_=f"{one}-{other}")
            for one in subjects
            for other in subjects
        ]
    )
    retriever = project.as_retriever(similarity_top_k=20)
    ids = [chunk.node_id for chunk in project.retrieve("meter", top_k=5)]
    questions = [Question(text, [{"id": one} for one in ids]) for text in ("valve 7", "filter of pump")]
    trials = Trials(project)
    for changes in ({}, {"fusion": "rrf"}, {"semantic_weight": 1.0}):
        changed = retriever.changed(**changes)
        _, _, expected = score(questions, lambda text, r=changed: r.respond(QueryBundle(text)).results)
        assert trials.ranks(questions, **changes) == expected


def test_recorded_orders_are_replayed_in_windows_and_other_passages_follow(tmp_path: Path) -> None:
    question = 'Which "pump" is loud?'
    llm = ReplayingLLM([])
    config = ProjectConfig.local(context="none", rerank_candidates=24)
    project = ProjectManager(tmp_path).create("orders", config, llm=llm)
    project.ingest([Document(text=f"The pump of hall {n} is loud on day {n}.", id_=f"{n}") for n in range(24)])
    hits = project.retrieve(question, top_k=24)
    wanted = [hits[at] for at in (23, 0, 12, 7, 3, 18)]
    order = [passage_key(str(hit.source), hit.text) for hit in wanted]
    file = tmp_path / "orders.jsonl"
    file.write_text(json.dumps({"question": question, "order": [*order, "of no passage"]}) + "\n", encoding="utf-8")
    llm.orders = load_orders(file)
    reranked = project.as_retriever(similarity_top_k=24).changed(rerank=LLM_RERANK)
    ids = [result.node_id for result in reranked.respond(QueryBundle(question)).results]
    assert ids[: len(wanted)] == [hit.node_id for hit in wanted]
    assert sorted(ids) == sorted(hit.node_id for hit in hits)
    assert llm.unknown >= len(hits) - len(wanted)  # those in two windows are counted twice
    with pytest.raises(ModelError, match="no order was recorded for 'another'"):
        reranked.respond(QueryBundle("another"))
