"""Passages in the prompt: the best hit is included, however many hits are adjacent to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.examples import EXAMPLES
from tests.support.models import ScriptedLLM


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A manual of which a search returns nearly every chunk."""
    pytest.importorskip("wordllama", reason="needs the extra local")
    root: Path = tmp_path_factory.mktemp("passages")
    project = ProjectManager(root).create("manual", ProjectConfig.local())
    project.ingest([EXAMPLES / "data" / "station-manual.md"])
    return project


@pytest.mark.parametrize("answer_tokens", [600, 1500, 4000, 8000])
def test_the_best_hit_is_in_the_prompt_if_nearly_all_of_a_document_is_retrieved(
    manual: Project, answer_tokens: int
) -> None:
    response = manual.retrieve("What does error TS-999 mean?")
    assert len(response) > 10
    assert "watchdog reset" in response[0].text
    llm = ScriptedLLM(default="A watchdog reset [Source 1].")
    manual.as_query_engine(llm=llm, answer_tokens=answer_tokens).query(response.query)
    assert "**TS-999, watchdog reset.**" in llm.history[0]
