"""The benchmark against other systems: upstream files are read unchanged, and every row is scored the same way."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from llama_index_contextual.models import load_embed_model
from tests.benchmarks import field, field_systems
from tests.benchmarks.memory import peak_memory
from tests.benchmarks.sets import Question, QuestionSet
from tests.benchmarks.upstream import cookbook, mtrag
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
PASSAGES = [("cafe-0-20", "Safe rooms."), ("cafe-18-40", "Kits\u2028and water."), ("dada_7384-8758-0-9", "Tornados.")]


def write_cookbook(folder: Path, golden: list[list[object]]) -> Path:
    (folder / "codebase_chunks.json").write_text(json.dumps(COOKBOOK))
    row = {"query": "What does b do?", "answer": "Nothing.", "golden_chunk_uuids": golden, "golden_documents": []}
    (folder / "evaluation_set.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def write_mtrag(folder: Path, *, packed: bool, judged: str = "cafe-18-40") -> Path:
    corpus, tasks = folder / "corpora" / "passage_level", folder / "mtrag-human" / "retrieval_tasks" / "govt"
    corpus.mkdir(parents=True)
    (tasks / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "id": name, "url": "", "text": text, "title": "Safety"} for name, text in PASSAGES]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if packed:
        with zipfile.ZipFile(corpus / "govt.jsonl.zip", "w") as archive:
            archive.writestr("govt.jsonl", lines)
    else:
        (corpus / "govt.jsonl").write_text(lines, encoding="utf-8")
    (tasks / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\nq<::>2\t{judged}\t1\nq<::>2\tcafe-0-20\t1\n")
    queries = [{"_id": "q<::>1", "text": "|user|: Hello"}, {"_id": "q<::>2", "text": "|user|: What should I keep?"}]
    (tasks / "govt_rewrite.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
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


@pytest.mark.parametrize("packed", [True, False])
def test_mtrag_is_read_packed_and_unpacked(tmp_path: Path, packed: bool) -> None:
    read = mtrag(write_mtrag(tmp_path, packed=packed), "govt")
    assert [(one["chunk_id"], one["doc_id"], one["start"]) for one in read.chunks] == [
        ("cafe-0-20", "cafe", 0),
        ("cafe-18-40", "cafe", 18),
        ("dada_7384-8758-0-9", "dada_7384-8758", 0),
    ]
    # Without a judgement, the first question is not part of the task.
    assert read.questions == [Question("What should I keep?", [{"id": "cafe-18-40"}, {"id": "cafe-0-20"}])]


def test_a_judgement_of_a_passage_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one version"):
        mtrag(write_mtrag(tmp_path, packed=False, judged="cafe-40-60"), "govt")


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_a_row_scores_the_ids_of_the_hits() -> None:
    questions = [Question("a", [{"id": "1"}]), Question("b", [{"id": "2"}, {"id": "9"}])]
    figures = {"hits": [["1"], ["3", "4", "2"]], "query_ms": [1.0, 3.0], "ingest_s": 2.0, "disk_mb": 0.5, "peak_mb": 99}
    line = field.row(field.System("one", []), questions, figures | {"version": "one 1.0"})
    # recall at 1: (1 + 0) / 2; at 5: (1 + 1/2) / 2; nDCG: (1 + (1/log2(4)) / (1 + 1/log2(3))) / 2; median (1 + 3) / 2
    assert line.split() == ["one", "50.0", "75.0", "75.0", "65.3", "2.0", "0.5", "2.0", "99.0", "one", "1.0"]


def test_the_peak_of_a_process_does_not_include_that_of_its_parent() -> None:
    held = b"x" * (400 << 20)
    program = "from tests.benchmarks.memory import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100 < len(held) / 2**20 < peak_memory()


def test_a_system_that_cannot_be_measured_says_why() -> None:
    rows = {system.name: field.row(system, [], None) for system in field.systems(None) if system.problem}
    assert set(rows) == {field.HAIKU, field.HAIKU_DEFAULTS}
    assert all(line.endswith("give --haiku PYTHON") for line in rows.values())


def test_without_ollama_the_models_are_not_present() -> None:
    assert field.ollama_problem("http://127.0.0.1:9") == "models not present"


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


@pytest.mark.parametrize("system", ["llama-index", "none", "structural"])
def test_a_system_indexes_the_chunks_and_finds_them(local: BaseEmbedding, tmp_path: Path, system: str) -> None:
    chunks = [
        {"chunk_id": f"c{at}", "doc_id": f"d{at // 2}", "start": 0, "end": len(text), "text": text}
        for at, text in enumerate(["The pump is red.", "A valve leaks.", "Meters count water."])
    ]
    with field.served(local) as url:
        model = OpenAILikeEmbedding(model_name="served", api_base=url, api_key="none")
        task = {"chunks": QuestionSet("set", None, chunks, []).chunks}
        if system == "llama-index":
            search = field_systems.llama_index(task, model, tmp_path)
        else:
            search = field_systems.contextual(system, task, model, tmp_path)
        figures = field_systems.timed(search, ["Which valve leaks?", "meters"])
    assert [hits[0] for hits in figures["hits"]] == ["c1", "c2"]
    assert len(figures["query_ms"]) == 2
    assert any(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
