"""The LLM of the benchmarks that answers with recorded contexts."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.replay import ReplayingLLM
from tests.benchmarks.sets import RecordedContext

FIRST = "The lessee pays the rent in advance. Either party may end the lease with notice of a month."
SECOND = "Repairs of the roof are paid by the lessor. Repairs of the windows are paid by the lessee."
OTHER = "The licensee pays the fee in advance. Either party may end the licence with notice of a month."
RECORDED = (
    RecordedContext("lease", FIRST, "Rent and notice of the lease."),
    RecordedContext("lease", SECOND, "Repairs under the lease."),
    RecordedContext("licence", OTHER, "Fee and notice of the licence."),
)


def test_each_chunk_has_the_context_of_the_recorded_chunk_that_it_resembles(manager: ProjectManager) -> None:
    config = ProjectConfig.local(context="llm", context_on_structure=False, chunk_size=24, chunk_overlap=0)
    project = manager.create("replayed", config, llm=ReplayingLLM(RECORDED))
    project.ingest([Document(text=f"{FIRST}\n\n{SECOND}", id_="a"), Document(text=OTHER, id_="b")])
    lease, licence = ([chunk.metadata["context"] for chunk in project.chunks(name)] for name in ("a", "b"))
    assert lease == ["Rent and notice of the lease.", "Repairs under the lease."]
    assert licence == ["Fee and notice of the licence."]


def test_a_prompt_without_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="only the default prompt can be replayed"):
        ReplayingLLM(RECORDED).complete("Summarise the lease.")
