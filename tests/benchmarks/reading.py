"""How often the LLM reads the evidence: `python -m tests.benchmarks.reading --data DATA/conversations`.

For several numbers of passages and values of `answer_tokens`, prints the share of questions with evidence among the
passages that fit, and the number of passages and tokens. No LLM is called.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_index.core.schema import MetadataMode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.evaluation.questions import ResultChunk, load_questions
from llama_index_contextual.postprocessor import SEPARATOR_TOKENS
from llama_index_contextual.project.manager import ProjectManager

LIMITS = ((3, 10**9), (20, 4000), (20, 8000), (20, 12000), (20, 16000), (20, 10**9))
"""Numbers of passages, and of tokens."""


def main() -> None:
    """Print one line per limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with questions.jsonl and documents")
    parser.add_argument("--questions", type=int, default=150)
    arguments = parser.parse_args()
    questions = load_questions(arguments.data / "questions.jsonl")[: arguments.questions]
    folder = next(arguments.data / name for name in ("documents", "pdf") if (arguments.data / name).is_dir())
    with tempfile.TemporaryDirectory() as root:
        project = ProjectManager(root).create("reading", ProjectConfig.local())
        project.ingest([folder])
        responses = [project.retrieve(question.text, top_k=20) for question in questions]
    for most, tokens in LIMITS:
        answered = read = used = 0
        for question, response in zip(questions, responses, strict=True):
            chosen, room = [], tokens
            for chunk in response:
                size = count_tokens(chunk.node.get_content(metadata_mode=MetadataMode.LLM)) + SEPARATOR_TOKENS
                if len(chosen) < most and size <= room:
                    chosen.append(ResultChunk(chunk))
                    room -= size
            answered += any(rank is not None for rank in question.ranks(chosen))
            read, used = read + len(chosen), used + tokens - room
        count = len(questions)
        limit = f"{most} passages" if tokens == 10**9 else f"{tokens:,} tokens"
        print(f"{limit:>13}: {100 * answered / count:5.1f} % with evidence", end=", ")
        print(f"{read / count:.1f} passages, {used / count:,.0f} tokens")


if __name__ == "__main__":
    main()
