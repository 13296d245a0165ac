"""Let an LLM write contexts for a folder of your own, within a budget, and measure what they change.

    python examples/own_contexts.py FOLDER [--questions QUESTIONS.jsonl] [--max-cost 1] [--llm openai:gpt-6-luna]

Prints the price and asks before anything is sent. The contexts are kept in the ledger of the project and written to
`--out`, so that they are paid for once. The embedding runs on this machine (extra `local`); only the LLM needs a key,
or a server of your own. With `--questions` (lines with a question, its file and its evidence), chunks without context,
with structural contexts and with those of the LLM are compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from llama_index_contextual import ContextualError, Project, ProjectConfig, ProjectManager
from llama_index_contextual.evaluation.compare import compare_variants
from llama_index_contextual.index.ledger_lines import export_ledger


def main() -> None:
    """Estimate, ask, write the contexts, and compare."""
    parser = argparse.ArgumentParser(description="Contexts by an LLM for a folder of your own.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=Path, help="questions with evidence, as JSON lines")
    parser.add_argument("--max-cost", type=float, default=1.0, help="limit in dollars (1)")
    parser.add_argument("--llm", help="the LLM as provider:name; by default that of a new project")
    parser.add_argument("--out", type=Path, default=Path("contexts.jsonl"), help="file for the contexts")
    parser.add_argument("--root", type=Path, default=Path("knowledge"), help="root folder of the projects")
    parser.add_argument("--name", default="own-contexts", help="name of the project")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args()
    try:
        project = open_project(options.root, options.name, options.llm)
        print(project.estimate([options.folder]))
        if not options.yes and input(f"Send this, within ${options.max_cost:g}? [y/N] ").strip().lower() != "y":
            return
        report = project.ingest([options.folder], max_cost=options.max_cost)
        print(report)
        print(f"{export_ledger(project.directory, options.out).contexts} contexts in {options.out}")
        if options.questions:
            variants = ("none", "structural", "llm")
            comparison = compare_variants(project, options.questions, variants=variants, max_cost=options.max_cost)
            print(comparison)
            print(comparison.recommendation)
    except ContextualError as error:
        raise SystemExit(f"Error: {error}") from None


def open_project(root: Path, name: str, llm: str | None) -> Project:
    """Open the project of an earlier run, or create it: contexts by an LLM, embedding on this machine."""
    manager = ProjectManager(root)
    if name in manager.list():
        return manager.load(name)
    chosen = {} if llm is None else {"llm": llm}
    return manager.create(name, ProjectConfig.local(context="llm", **chosen))


if __name__ == "__main__":
    main()
