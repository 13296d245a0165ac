"""What `semble` takes for a folder of text; run by an interpreter that has it, with FOLDER QUERIES WEIGHTS TOKENIZER.

Its own model lies on a server; it gets the static embedding that this package has without network (WordLlama, 256
dimensions as well), so that both do the same work. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


def main(folder: str, queries: str, weights: str, tokenizer: str) -> None:
    """Index the folder, ask every question, and print seconds and milliseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(HOME=scratch, SEMBLE_CACHE_LOCATION=scratch)  # it keeps what it indexed; every run is new
        model = Path(scratch) / "model"
        _save_model(model, weights, tokenizer)

        from semble import SembleIndex  # type: ignore[import-not-found]
        from semble.types import ContentType  # type: ignore[import-not-found]

        started = time.perf_counter()
        index = SembleIndex.from_path(folder, content=(ContentType.DOCS,), model_path=str(model))
        seconds = time.perf_counter() - started
        questions = json.loads(Path(queries).read_text(encoding="utf-8"))
        took = []
        for question in questions[:10] + questions:
            started = time.perf_counter()
            found = index.search(question, top_k=20)
            took.append(time.perf_counter() - started)
        if len(found) != 20:
            raise SystemExit(f"semble found {len(found)} passages instead of 20")
        print(json.dumps({"index_s": seconds, "p50_ms": 1e3 * statistics.median(took[10:]),
                          "chunks": index.stats.total_chunks}))  # fmt: skip


def _save_model(directory: Path, weights: str, tokenizer: str) -> None:
    from model2vec import StaticModel  # type: ignore[import-not-found]
    from safetensors.numpy import load_file  # type: ignore[import-not-found]
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    (vectors,) = load_file(weights).values()
    StaticModel(vectors.astype("float32"), Tokenizer.from_file(tokenizer), normalize=True).save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
