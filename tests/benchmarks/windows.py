"""Windows for a transformer that reads few tokens: `python -m tests.benchmarks.windows --data DATA --model FOLDER`.

Chunks have the default size and are embedded by a sentence-transformers model in a local folder that reads less than a
chunk with its context (all-MiniLM-L6-v2 reads 256 tokens; `pip install "llama-index-contextual[huggingface]"`): once
truncated by the model, once in windows whose vectors are averaged, and for comparison by WordLlama (`local`). They are
searched in every mode, with the default settings. `--every 3` uses every third document of a folder and the questions
about it, because encoding takes long. Nothing is downloaded.

`--variants first apart` compares windows that each begin with the context, as in the package, with windows of which
only the first contains it (`first`), and with the context as a window of its own, weighted by its share of a full
window (`apart`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.windows import Window, WindowSplitter
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import HEAD, Ranks, build, contexts_of, differences, measured, options
from tests.benchmarks.sets import QuestionSet, load

_split = WindowSplitter.split


def context_first(splitter: WindowSplitter, text: str, context_end: int) -> list[Window]:
    """Return the windows of a text as if its context were part of the text, so that only the first begins with it."""
    return _split(splitter, text)


def context_apart(splitter: WindowSplitter, text: str, context_end: int) -> list[Window]:
    """Return the context of a text as a window of its own, with as much weight as if it were in each window."""
    windows, head = _split(splitter, text, context_end), text[:context_end]
    if len(windows) == 1 or not head.strip() or not windows[-1].text.startswith(head):
        return windows
    context, body = len(splitter.spans(head)), _split(splitter, text[context_end:])
    weight = sum(window.tokens for window in body) * context / (splitter.room - context)
    return [Window(head, round(weight)), *body]


SPLITS: dict[str, Callable[[WindowSplitter, str, int], list[Window]]] = {
    "first": context_first,
    "apart": context_apart,
    "windows": _split,
}
OTHERS = ("wordllama", "truncated", "first", "apart")
"""The variants with which windows are compared."""


def main() -> None:
    """Print the table, and how far windows are above the others."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="use every nth document of a folder")
    parser.add_argument("--variants", nargs="*", choices=OTHERS, default=["wordllama", "truncated"])
    parser.set_defaults(sets=["codebase", "contracts"], contexts=["structural", "both"])
    arguments = parser.parse_args()
    print(f"{'set':14s} {'context':11s} {'mode':9s}{HEAD}")
    for name in arguments.sets:
        questions = load(arguments.data, name)
        if questions.folder and arguments.every > 1:
            questions = _every(questions, arguments.every)
        for context in contexts_of(questions, arguments.contexts):
            measure(questions, context, f"huggingface:{arguments.model}", arguments.variants)


def measure(questions: QuestionSet, context: str, model: str, others: Sequence[str]) -> None:
    """Print the figures of each variant, and how far windows are above the others."""
    kept: dict[str, dict[str, Ranks]] = {}
    with tempfile.TemporaryDirectory() as root:
        for variant in (*others, "windows"):
            name = "local" if variant == "wordllama" else model
            config = ProjectConfig.local(embed_model=name, embed_window="auto" if variant in SPLITS else None)
            counts: list[int] = []
            started = time.process_time()
            with mock.patch.object(WindowSplitter, "split", counting(variant, counts)):
                project = build(ProjectManager(Path(root) / variant), questions, context, config=config)
            built = time.process_time() - started
            print(f"{variant}: {project.info().chunks} chunks, built in {built:.1f} s of CPU time")
            if counts:
                print(f"  {len(counts)} windows, {sum(counts)} tokens")
            kept[variant] = measured(project, questions, f"{questions.name}/{context}")
    for other in others:
        for key in kept[other]:
            shown = differences(kept["windows"][key], kept[other][key], ["nDCG@10"])
            print(f"{key}, windows − {other}: {shown}", flush=True)


def counting(variant: str, counts: list[int]) -> Callable[[WindowSplitter, str, int], list[Window]]:
    """Return the function that divides texts in a variant, and adds the number of tokens in each window to `counts`."""

    def split(splitter: WindowSplitter, text: str, context_end: int) -> list[Window]:
        windows = SPLITS[variant](splitter, text, context_end)
        counts.extend(len(splitter.spans(window.text)) for window in windows)
        return windows

    return split


def _every(questions: QuestionSet, step: int) -> QuestionSet:
    """Return every n-th document, with the questions about it."""
    names = sorted({str(document.metadata["file_name"]) for document in questions.documents})[::step]
    few = replace(questions, questions=[q for q in questions.questions if q.evidence[0]["file"] in names])
    few.__dict__["documents"] = [d for d in questions.documents if d.metadata["file_name"] in names]
    return few


if __name__ == "__main__":
    main()
