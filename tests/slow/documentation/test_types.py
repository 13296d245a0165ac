"""What a type checker says of calls with misspelt options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLIPS = (
    'project.as_query_engine(stlye="persona")',
    "project.as_query_engine(similarity_topk=5)",
    "project.as_query_engine(stream=True)",
    "project.as_query_engine(postprocessors=[])",
    'project.as_query_engine(response_mod="refine")',
    "project.as_query_engine(reference_day=None)",
    "project.as_query_engine(use_asinc=True)",
    "project.as_chat_engine(memmory=None)",
    "project.as_chat_engine(turn=3)",
    'project.as_chat_engine(search_mod="lexical")',
    "project.as_chat_engine(history_token=500)",
    "project.as_retriever(filter=None)",
    'project.retrieve("q", topk=3)',
    'project.retrieve_many(["q"], top_ks=3)',
    'project.ingest(["f"], max_costs=1.0)',
    'project.ingest(["f"], password="x")',
    'project.sync_folders(["f"], dryrun=True)',
    'project.estimate(["f"], batched=True)',
    "project.as_tool(descripton=None)",
    'sweep_answers(project, [], styl="persona")',
)


def test_each_misspelt_option_is_an_error_of_mypy(tmp_path: Path) -> None:
    module = tmp_path / "slips.py"
    head = "from llama_index_contextual import Project\n"
    head += "from llama_index_contextual.evaluation.compare import sweep_answers\nproject: Project\n"
    module.write_text(head + "\n".join(SLIPS) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    lines = [
        line.split(":")[1]
        for line in done.stdout.splitlines()
        if "error: Unexpected keyword" in line or "No overload" in line
    ]
    first = head.count("\n") + 1
    assert lines == [str(first + number) for number in range(len(SLIPS))], done.stdout
