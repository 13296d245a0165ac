"""CPU time and memory of embeddings: `python -m tests.benchmarks.encoders --model FOLDER --onnx FOLDER`.

Embeds 64 texts of about 240 tokens with WordLlama, a sentence-transformers model in a local folder (`--model`), and the
same model in ONNX format with fastembed (`--onnx`: a folder with `model.onnx` and the files of the tokenizer). Each
model runs in its own process. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.models import load_embed_model
from tests.benchmarks.memory import peak_memory

TEXTS = [f"word{at} the pump makes a loud noise in the {at} room " * 22 for at in range(64)]


def load(kind: str, folder: str) -> BaseEmbedding:
    """Return one of the models."""
    if kind == "local":
        return load_embed_model("local")
    if kind == "huggingface":
        return load_embed_model(f"huggingface:{folder}")
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    from llama_index_contextual.embeddings.fastembed import OnnxEmbedding

    source = ModelSource(hf="nobody/nothing")
    TextEmbedding.add_custom_model("local/model", PoolingType.MEAN, True, source, dim=384, model_file="model.onnx")
    return OnnxEmbedding("local/model", specific_model_path=folder)


def measure(kind: str, folder: str) -> None:
    """Print the figures of one model, of this process."""
    model = load(kind, folder)
    model.get_text_embedding("the first call loads")
    started = time.process_time()
    for at in range(0, len(TEXTS), 32):
        model.get_text_embedding_batch(TEXTS[at : at + 32])
    spent = 1000 * (time.process_time() - started) / len(TEXTS)
    print(f"{kind:12s} {spent:8.2f} ms of CPU time per text, {peak_memory():.0f} MB", flush=True)


def main() -> None:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--onnx", default="")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(*arguments.one)
        return
    for kind, folder in (("local", "-"), ("fastembed", arguments.onnx), ("huggingface", arguments.model)):
        if folder:
            subprocess.run([sys.executable, "-m", "tests.benchmarks.encoders", "--one", kind, folder], check=True)


if __name__ == "__main__":
    main()
