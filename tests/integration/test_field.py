"""The benchmark against other systems: upstream files are read unchanged, and every row is scored the same way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from llama_index_contextual.models import load_embed_model
from tests.benchmarks import field, field_systems
from tests.benchmarks.memory import peak_memory
from tests.benchmarks.sets import Question
from tests.benchmarks.upstream import TATQA_FILES, cookbook, tatqa, xquad
from tests.support.source import ROOT

COOKBOOK = [
    {
        "doc_id": "doc_1",
        "original_uuid": "aa",
        "content": "fn a() {}\nfn b() {}\n",
        "chunks": [
            {"chunk_id": "doc_1_chunk_0", "original_index": 0, "content": "fn a() {}\n"},
            {"chunk_id": "doc_1_chunk_1", "original_index": 1, "content": "fn b() {}\n"},
        ],
    },
    {
        "doc_id": "doc_2",
        "original_uuid": "bb",
        "content": "fn a() {}\n",
        "chunks": [{"chunk_id": "doc_2_chunk_0", "original_index": 0, "content": "fn a() {}\n"}],
    },
]
XQUAD = {
    "data": [
        {
            "title": "Bremen",
            "paragraphs": [
                {"context": "Bremen liegt an der Weser.", "qas": [{"id": "1", "question": "Wo liegt Bremen?"}]},
                {"context": "Der Roland steht am Markt.", "qas": [{"id": "2", "question": "Wo steht der Roland?"}]},
            ],
        }
    ]
}


def tatqa_document(uid: str, *questions: tuple[str, str, list[str]]) -> dict[str, object]:
    return {
        "table": {"uid": uid, "table": [["", "2019"], ["Total  sales", "$1.5"]]},
        "paragraphs": [
            {"uid": "p", "order": 1, "text": "Sales rose."},
            {"uid": "q", "order": 2, "text": "In millions."},
        ],
        "questions": [
            {"question": text, "answer_from": source, "rel_paragraphs": orders} for text, source, orders in questions
        ],
    }


def write_cookbook(folder: Path, golden: list[list[object]]) -> Path:
    (folder / "codebase_chunks.json").write_text(json.dumps(COOKBOOK))
    row = {"query": "What does b do?", "answer": "Nothing.", "golden_chunk_uuids": golden, "golden_documents": []}
    (folder / "evaluation_set.jsonl").write_text(json.dumps(row) + "\n")
    return folder


# ---- upstream files --------------------------------------------------------------------------------------------------


def test_the_cookbook_is_read_with_the_spans_of_its_chunks(tmp_path: Path) -> None:
    read = cookbook(write_cookbook(tmp_path, [["aa", 1], ["bb", 0]]))
    assert [(one["chunk_id"], one["doc_id"], one["start"], one["end"]) for one in read.chunks] == [
        ("doc_1_chunk_0", "doc_1", 0, 10),
        ("doc_1_chunk_1", "doc_1", 10, 20),
        ("doc_2_chunk_0", "doc_2", 0, 10),
    ]
    assert read.questions == [Question("What does b do?", [{"id": "doc_1_chunk_1"}, {"id": "doc_2_chunk_0"}])]
    assert [node.ref_doc_id for node in read.nodes(context=False)] == ["doc_1", "doc_1", "doc_2"]


def test_a_question_about_a_chunk_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="What does b do"):
        cookbook(write_cookbook(tmp_path, [["aa", 2]]))


def test_the_evidence_of_xquad_is_the_paragraph_of_the_question(tmp_path: Path) -> None:
    (tmp_path / "xquad.de.json").write_text(json.dumps(XQUAD), encoding="utf-8")
    read = xquad(tmp_path, "de")
    assert [(one["chunk_id"], one["doc_id"], one["start"], one["end"]) for one in read.chunks] == [
        ("Bremen-0", "Bremen", 0, 26),
        ("Bremen-1", "Bremen", 28, 54),
    ]
    assert read.questions == [
        Question("Wo liegt Bremen?", [{"id": "Bremen-0"}]),
        Question("Wo steht der Roland?", [{"id": "Bremen-1"}]),
    ]


def test_the_evidence_of_tatqa_is_the_table_and_the_paragraphs_that_are_named(tmp_path: Path) -> None:
    asked = ("How much?", "table", []), ("By what?", "text", ["2"]), ("Both?", "table-text", ["1", "2"])
    repeated = ("What does the table show?", "table", [])
    dev, test = tatqa_document("a", *asked, repeated), tatqa_document("b", repeated)
    for name, document in zip(TATQA_FILES, (dev, test), strict=True):
        (tmp_path / name).write_text(json.dumps([document]), encoding="utf-8")
    read = tatqa(tmp_path)
    assert [one["chunk_id"] for one in read.chunks] == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    assert read.chunks[0]["text"] == "|  | 2019 |\n| --- | --- |\n| Total sales | $1.5 |"
    assert read.questions == [
        Question("How much?", [{"id": "a-0"}]),
        Question("By what?", [{"id": "a-2"}]),
        Question("Both?", [{"id": "a-0"}, {"id": "a-1"}, {"id": "a-2"}]),
    ]


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_a_row_scores_the_ids_of_the_hits() -> None:
    questions = [Question("a", [{"id": "1"}]), Question("b", [{"id": "2"}, {"id": "9"}])]
    figures = {"hits": [["1"], ["3", "4", "2"]], "query_ms": [1.0, 3.0], "ingest_s": 2.0, "disk_mb": 0.5, "peak_mb": 99}
    ranks = field.ranks_of(questions, figures)
    assert ranks == [[1], [3, None]]
    # recall at 1: (1 + 0) / 2; at 5: (1 + 1/2) / 2; nDCG: (1 + (1/log2(4)) / (1 + 1/log2(3))) / 2; median (1 + 3) / 2
    expected = "| one | 50.0 | 75.0 | 75.0 | 65.3 | 2.0 | 0.5 | 2.0 | 99 | one 1.0 |"
    assert field.row("one", ranks, figures | {"version": "one 1.0"}) == expected


def test_the_peak_of_a_process_does_not_include_that_of_its_parent() -> None:
    held = b"x" * (400 << 20)
    program = "from tests.benchmarks.memory import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100 < len(held) / 2**20 < peak_memory()


def test_haiku_is_measured_only_if_its_environment_is_given(tmp_path: Path) -> None:
    names = list(field.systems(None))
    assert "haiku.rag" not in names
    measured = field.systems(tmp_path / "python")
    assert sorted(measured) == sorted([*names, "haiku.rag"])
    assert measured["haiku.rag"] == [str(tmp_path / "python"), str(ROOT / "tests" / "benchmarks" / "field_haiku.py")]


@pytest.fixture(scope="module")
def local() -> BaseEmbedding:
    return load_embed_model("local")


def test_every_system_gets_the_vectors_of_the_model(local: BaseEmbedding) -> None:
    with field.served(local) as url:
        client = OpenAILikeEmbedding(model_name="served", api_base=url, api_key="none")
        texts = ["A pump.", "A valve."]
        expected = local.get_text_embedding_batch(texts)
        np.testing.assert_allclose(client.get_text_embedding_batch(texts), expected, rtol=1e-6)
        np.testing.assert_allclose(field.embed(url, texts[:1]), expected[:1], rtol=1e-6)
        with field.embedding_server(url) as running:
            assert running == url


@pytest.mark.parametrize("system", ["bm25", "llama-index", "none", "structural"])
def test_a_system_indexes_the_chunks_and_finds_them(local: BaseEmbedding, tmp_path: Path, system: str) -> None:
    chunks = [
        {"chunk_id": f"c{at}", "doc_id": f"d{at // 2}", "start": 0, "end": len(text), "text": text}
        for at, text in enumerate(["The pump is red.", "A valve leaks.", "Meters count water."])
    ]
    with field.served(local) as url:
        model = OpenAILikeEmbedding(model_name="served", api_base=url, api_key="none")
        task = {"chunks": chunks, "language": "en"}
        if system in ("bm25", "llama-index"):
            search = field_systems.llama_index(task, model if system == "llama-index" else None, tmp_path)
        else:
            search = field_systems.contextual(system, task, model, tmp_path)
        figures = field_systems.timed(search, ["Which valve leaks?", "meters"])
    assert [hits[0] for hits in figures["hits"]] == ["c1", "c2"]
    assert len(figures["query_ms"]) == 2
    assert any(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
