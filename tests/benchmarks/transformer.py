"""The default fusion with a transformer: `python -m tests.benchmarks.transformer --data ../shared/data --model FOLDER`.

Sets with recorded contexts, with each kind of context (see `quality`), embedded by a sentence-transformers model of a
local folder (all-MiniLM-L6-v2 when the defaults were chosen; `pip install sentence-transformers`, which is not a
dependency of the suite), and searched with the default settings and with one of them changed at a time. That model
reads 256 tokens, so chunks have 180; the chunks of the code set are ready. Nothing is downloaded. `--cache FILE` keeps
the vectors for the next run.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.quality import CONTEXTS, build, bundle, contexts_of
from tests.benchmarks.sets import KS, SETS, QuestionSet, load, ndcg, score

DEFAULT = "default settings"
VARIANTS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "rrf 0.5/0.5": {"fusion": "rrf", "semantic_weight": 0.5, "lexical_weight": 0.5},
    "rrf 0.4/0.6": {"fusion": "rrf", "semantic_weight": 0.4, "lexical_weight": 0.6},
    **{
        f"score {share:.1f}/{1 - share:.1f}": {"semantic_weight": share, "lexical_weight": 1 - share}
        for share in (0.3, 0.4, 0.5, 0.6, 0.7)
    },
    "candidates 50": {"candidates": 50},
    "candidates 200": {"candidates": 200},
    "semantic": {"semantic_weight": 1.0, "lexical_weight": 0.0},
    "without documents": {"document_weight": 0.0, "sibling_weight": 0.0},
}


class Transformer(BaseEmbedding):
    """Unit vectors by a sentence-transformers model on this machine, each computed once."""

    folder: str
    cache: str = ":memory:"

    @cached_property
    def _encoder(self) -> Any:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self.folder, device="cpu", local_files_only=True)

    @cached_property
    def _vectors(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.cache, check_same_thread=False, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB)")
        return connection

    def _known(self, key: str) -> list[float] | None:
        row = self._vectors.execute("SELECT vector FROM vectors WHERE key = ?", [key]).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32).tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        keys = {text: xxhash.xxh3_128_hexdigest(f"{self.model_name}\n{text}".encode()) for text in texts}
        rows = {text: self._known(key) for text, key in keys.items()}
        if new := [text for text, row in rows.items() if row is None]:
            for text, vector in zip(new, self._encoder.encode(new, normalize_embeddings=True), strict=True):
                rows[text] = vector.tolist()
                self._vectors.execute("INSERT INTO vectors VALUES (?, ?)", [keys[text], vector.tobytes()])
        return [rows[text] or [] for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def main() -> None:
    """Print the table, and how far the default settings are above reciprocal ranks of equal weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["codebase", "contracts"])
    parser.add_argument("--contexts", nargs="*", choices=CONTEXTS, default=list(CONTEXTS))
    parser.add_argument("--cache", type=Path, help="SQLite file for the vectors")
    arguments = parser.parse_args()
    model = Transformer(folder=str(arguments.model), model_name=arguments.model.name)
    if arguments.cache:
        model.cache = str(arguments.cache)
    config = ProjectConfig(chunk_size=180, chunk_overlap=18)
    print(f"{'set':14s} {'context':10s} {'settings':18s}{''.join(f'  R@{k:<4d}' for k in KS)}  nDCG@10")
    for name in arguments.sets:
        questions = load(arguments.data, name)
        for context in contexts_of(questions, arguments.contexts):
            with tempfile.TemporaryDirectory() as root:
                project = build(ProjectManager(root), questions, context, config=config, embed_model=model)
                measure(project, questions, f"{name:14s} {context:10s}")


def measure(project: Project, questions: QuestionSet, label: str) -> None:
    """Print one line per variant of the settings."""
    retriever = project.as_retriever(similarity_top_k=max(KS))
    gains: dict[str, list[float]] = {}
    for name, changes in VARIANTS.items():
        changed = retriever.changed(**changes)
        recalls, gain, ranks = score(questions.questions, lambda q, r=changed: r.respond(bundle(q)).results)
        gains[name] = [100 * ndcg(result) for result in ranks]
        print(f"{label} {name:18s}{''.join(f'  {recalls[k]:5.1f} ' for k in KS)}  {gain:5.1f}", flush=True)
    difference = (np.asarray(gains[DEFAULT]) - np.asarray(gains["rrf 0.5/0.5"])).tolist()
    result, p = bootstrap_interval(difference), permutation_p_value(difference)
    print(f"{label} default − rrf, nDCG@10: {result.mean:+.1f} ({result.low:+.1f} to {result.high:+.1f}), p = {p:.2g}")


if __name__ == "__main__":
    main()
