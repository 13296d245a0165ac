"""The local embedding in processes of its own: no network, and the vectors of WordLlama's package."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import logging, os, socket
def refuse(*arguments, **options): raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
root = logging.getLogger()
before = root.handlers[:], root.level
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.index.bm25 import LexicalIndex
print(len(WordLlamaEmbedding().get_text_embedding("revenue")))
print(count_tokens("three small words"), os.environ.get("TIKTOKEN_CACHE_DIR"))
LexicalIndex.build(["pump", "valve"]).scores("pump")
print((root.handlers, root.level) == before, logging.getLogger("bm25s").getEffectiveLevel() == root.level)
import sys
print("wordllama" in sys.modules)
"""


def test_models_and_indexes_need_no_network_and_leave_logs_and_environment_as_they_were() -> None:
    environment = {"PATH": "", "HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["256", "3", "None", "True", "True", "False"], done.stderr
    assert "bm25s" not in done.stderr


PACKAGE = """
import random
from pathlib import Path
import numpy as np
import wordllama
from llama_index_contextual.embeddings.words import embedded, word_vectors

package = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
draw = random.Random(7)
words = ["pump", "TS-999", "überprüft", "文字", "\\n\\n", "🦜", "</s>", "3.5", "naïve", "x" * 300, "\\x00", "|", "  "]
texts = ["", " ", "…", *(" ".join(draw.choices(words, k=draw.choice([1, 5, 50, 400]))) for _ in range(150))]
expected = package.embed([text or " " for text in texts], norm=True)
print(embedded(texts).tobytes() == expected.tobytes())
print(np.concatenate([embedded([text]) for text in texts]).tobytes() == expected.tobytes())
single = [word for word in words if word.strip()]
sums = []
for word in single:
    ids = package.tokenizer.encode([word], is_pretokenized=True, add_special_tokens=False).ids
    sums.append(np.add.reduceat(package.embedding[ids], [0], axis=0)[0])
print(word_vectors(single).tobytes() == np.stack(sums).tobytes())
print(word_vectors(single, 128).tobytes() == np.stack(sums)[:, :128].tobytes())
"""


def test_the_vectors_are_those_of_the_package_to_the_byte() -> None:
    done = subprocess.run([sys.executable, "-c", PACKAGE], capture_output=True, text=True)  # it sets the root logger up
    assert done.stdout.split() == ["True"] * 4, done.stderr
