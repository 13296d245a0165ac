"""Windows for a transformer that reads few tokens: `python -m tests.benchmarks.windows --data DATA --model FOLDER`.

Chunks have the default size and are embedded by a sentence-transformers model in a local folder that reads less than a
chunk with its context (all-MiniLM-L6-v2 reads 256 tokens; `pip install "llama-index-contextual[huggingface]"`): once
truncated by the model, once in windows whose vectors are averaged, and for comparison by WordLlama (`local`). They are
searched in every mode, with the default settings. `--every 3` uses every third document of a folder and the questions
about it, because encoding takes long. Nothing is downloaded.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import HEAD, Ranks, build, contexts_of, differences, measured, options
from tests.benchmarks.sets import QuestionSet, load

WINDOWS: dict[str, int | str | None] = {"wordllama": None, "truncated": None, "windows": "auto"}


def main() -> None:
    """Print the table, and how far windows are above the others."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="use every nth document of a folder")
    parser.set_defaults(sets=["codebase", "contracts"], contexts=["structural", "both"])
    arguments = parser.parse_args()
    print(f"{'set':14s} {'context':11s} {'mode':9s}{HEAD}")
    for name in arguments.sets:
        questions = load(arguments.data, name)
        if questions.folder and arguments.every > 1:
            questions = _every(questions, arguments.every)
        for context in contexts_of(questions, arguments.contexts):
            measure(questions, context, f"huggingface:{arguments.model}")


def measure(questions: QuestionSet, context: str, model: str) -> None:
    """Print the figures of each variant, and how far windows are above the others."""
    kept: dict[str, dict[str, Ranks]] = {}
    with tempfile.TemporaryDirectory() as root:
        for variant, window in WINDOWS.items():
            name = "local" if variant == "wordllama" else model
            config = ProjectConfig.local(embed_model=name, embed_window=window)
            started = time.process_time()
            project = build(ProjectManager(Path(root) / variant), questions, context, config=config)
            built = time.process_time() - started
            print(f"{variant}: {project.info().chunks} chunks, built in {built:.1f} s of CPU time")
            kept[variant] = measured(project, questions, f"{questions.name}/{context}")
    for other in ("wordllama", "truncated"):
        for key in kept[other]:
            shown = differences(kept["windows"][key], kept[other][key], ["nDCG@10"])
            print(f"{key}, windows − {other}: {shown}", flush=True)


def _every(questions: QuestionSet, step: int) -> QuestionSet:
    """Return every n-th document, with the questions about it."""
    names = sorted({str(document.metadata["file_name"]) for document in questions.documents})[::step]
    few = replace(questions, questions=[q for q in questions.questions if q.evidence[0]["file"] in names])
    few.__dict__["documents"] = [d for d in questions.documents if d.metadata["file_name"] in names]
    return few


if __name__ == "__main__":
    main()
