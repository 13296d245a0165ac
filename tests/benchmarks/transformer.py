"""The default fusion with a transformer: `python -m tests.benchmarks.transformer --data ../shared/data --model FOLDER`.

The code set, without contexts and with the recorded ones, embedded by a sentence-transformers model of a local folder
(all-MiniLM-L6-v2 when the defaults were chosen; `pip install sentence-transformers`, which is not a dependency of the
suite), and searched with the default settings and with one of them changed at a time. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import bundle
from tests.benchmarks.sets import KS, load, ndcg, score

DEFAULT = "default settings"
VARIANTS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "rrf 0.5/0.5": {"fusion": "rrf", "semantic_weight": 0.5, "lexical_weight": 0.5},
    "rrf 0.4/0.6": {"fusion": "rrf"},
    **{
        f"score {share:.1f}/{1 - share:.1f}": {"semantic_weight": share, "lexical_weight": 1 - share}
        for share in (0.3, 0.5, 0.6, 0.7)
    },
    "candidates 50": {"candidates": 50},
    "candidates 200": {"candidates": 200},
    "without documents": {"document_weight": 0.0, "sibling_weight": 0.0},
}


class Transformer(BaseEmbedding):
    """Unit vectors by a sentence-transformers model on this machine."""

    folder: str

    @cached_property
    def _encoder(self) -> Any:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self.folder, device="cpu", local_files_only=True)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        rows: list[list[float]] = self._encoder.encode(texts, normalize_embeddings=True).tolist()
        return rows

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def main() -> None:
    """Print the table, and how far the default settings are above reciprocal ranks of equal weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    questions = load(arguments.data, "codebase")
    model = Transformer(folder=str(arguments.model), model_name=arguments.model.name)
    print(f"{'context':10s} {'settings':18s}{''.join(f'  R@{k:<4d}' for k in KS)}  nDCG@10")
    with tempfile.TemporaryDirectory() as root:
        for context in ("none", "recorded"):
            project = ProjectManager(root).create(context, ProjectConfig(context="none"), embed_model=model)
            project.ingest(questions.nodes(context=context == "recorded"))
            retriever = project.as_retriever(similarity_top_k=max(KS))
            gains: dict[str, list[float]] = {}
            for name, changes in VARIANTS.items():
                changed = retriever.changed(**changes)
                recalls, gain, ranks = score(questions.questions, lambda q, r=changed: r.respond(bundle(q)).results)
                gains[name] = [100 * ndcg(result) for result in ranks]
                print(
                    f"{context:10s} {name:18s}{''.join(f'  {recalls[k]:5.1f} ' for k in KS)}  {gain:5.1f}", flush=True
                )
            difference = (np.asarray(gains[DEFAULT]) - np.asarray(gains["rrf 0.5/0.5"])).tolist()
            result, p = bootstrap_interval(difference), permutation_p_value(difference)
            interval = f"{result.mean:+.1f} ({result.low:+.1f} to {result.high:+.1f}), p = {p:.2g}"
            print(f"{context:10s} default − rrf, nDCG@10: {interval}")


if __name__ == "__main__":
    main()
