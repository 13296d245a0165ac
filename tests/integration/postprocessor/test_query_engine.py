"""Merging and packing in a project and in a query engine."""

from __future__ import annotations

from pathlib import Path

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker, MergedChunk
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.postprocessor.documents import hit


async def test_a_query_engine_reads_passages_instead_of_chunks(manager: ProjectManager, tmp_path: Path) -> None:
    text = " \t\n\n".join(f"Valve {n} of the pump station opens at {n} bar." for n in range(12))
    (tmp_path / "valves.txt").write_text(text, encoding="utf-8")
    project = manager.create("a", ProjectConfig.local(chunk_size=40, chunk_overlap=10))
    project.ingest([tmp_path / "valves.txt"])
    docstore, read = project.storage_context.docstore, project.read("valves.txt")
    nodes = list(docstore.docs.values())
    assert len(nodes) > 5
    (whole,) = AdjacentChunkMerger().postprocess_nodes([hit(node) for node in nodes])
    assert whole.node.text == read.strip(), "the white space comes from the document"

    question = "Which valve opens at 3 bar?"
    packer = ContextWindowPacker(max_tokens=70, compress=True, min_tokens=10)
    for steps in ([AdjacentChunkMerger()], [AdjacentChunkMerger(), packer]):
        engine = RetrieverQueryEngine.from_args(project.as_retriever(), llm=MockLLM(), node_postprocessors=steps)
        for response in (engine.query(question), await engine.aquery(question)):
            (source,) = response.source_nodes
            assert isinstance(source, MergedChunk)
            assert source.node.text in read
            assert (source.node.text == read.strip()) == (packer not in steps)
            assert str(response).count("Valve 3 of") == 1
            assert packer not in steps or count_tokens(source.node.get_content(MetadataMode.LLM)) <= 70
