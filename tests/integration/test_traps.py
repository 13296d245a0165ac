"""Pitfalls of LlamaIndex components, compared with this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.indices.loading import load_index_from_storage
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import PrevNextNodePostprocessor
from llama_index.core.schema import BaseNode, RelatedNodeInfo, TransformComponent
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.vector_stores.faiss import FaissVectorStore
from pydantic import PrivateAttr

from llama_index_contextual import open_storage_context
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.models import load_embed_model, load_llm
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding
from tests.support.server import LoopbackProvider

MANUAL = Document(text="Error TS-999 means that the pump runs dry.", id_="manual")
REPORT = Document(text="Revenue grew by 3 %.", id_="report")


class Counting(TransformComponent):
    """Notes the texts that pass."""

    # Private, as the fields are part of the cache's key.
    _seen: list[str] = PrivateAttr(default_factory=list)

    @property
    def seen(self) -> list[str]:
        """The texts, in order."""
        return self._seen

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        self._seen.extend(node.get_content() for node in nodes)
        return nodes


@pytest.fixture
def counted(manager: ProjectManager) -> Project:
    """A project whose embedding model counts what it is asked for."""
    return manager.create("a", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())


# ---- the cache of a pipeline ---------------------------------------------------------------------------------------


def test_one_more_document_reruns_a_stock_pipeline_but_not_this_package(counted: Project) -> None:
    step = Counting()
    pipeline = IngestionPipeline(transformations=[step])
    pipeline.run(documents=[MANUAL])
    pipeline.run(documents=[MANUAL])
    assert len(step.seen) == 1
    pipeline.run(documents=[MANUAL, REPORT])
    assert step.seen == [MANUAL.text, MANUAL.text, REPORT.text]

    counted.ingest([MANUAL])
    counted.ingest([MANUAL, REPORT])
    assert isinstance(counted.embed_model, CountingEmbedding)
    assert counted.embed_model.texts == [MANUAL.text, REPORT.text]


def test_a_stock_cache_returns_equal_text_with_a_foreign_document_but_not_this_package(
    counted: Project,
) -> None:
    pipeline = IngestionPipeline(transformations=[SentenceSplitter()])
    twin = Document(text=MANUAL.text, id_="twin")
    pipeline.run(documents=[MANUAL])
    assert [node.ref_doc_id for node in pipeline.run(documents=[twin])] == ["manual"]

    counted.ingest([MANUAL])
    counted.ingest([twin])
    response = counted.retrieve("error TS-999", mode="lexical")
    assert {chunk.source.doc_id for chunk in response} == {"manual", "twin"}
    assert len({chunk.node_id for chunk in response}) == 2


# ---- links between nodes -------------------------------------------------------------------------------------------


def linked(nodes: list[BaseNode]) -> list[RelatedNodeInfo]:
    return [info for node in nodes for info in node.relationships.values() if isinstance(info, RelatedNodeInfo)]


def test_relationships_of_stock_chunks_repeat_the_metadata_but_not_in_this_package(counted: Project) -> None:
    document = Document(text="One sentence. " * 400, id_="long", metadata={"quarter": "Q2"})
    stock = SentenceSplitter(chunk_size=128, chunk_overlap=0).get_nodes_from_documents([document])
    assert {"quarter": "Q2"} in [info.metadata for info in linked(stock)]

    counted.ingest([document])
    ours = list(counted.storage_context.docstore.docs.values())
    assert len(ours) > 1
    assert all(node.metadata["quarter"] == "Q2" for node in ours)
    assert linked(ours)
    assert all(info.metadata == {} for info in linked(ours))


def test_the_stock_postprocessor_that_fetches_neighbours_works_on_our_store(counted: Project) -> None:
    counted.ingest(
        [Document(text="\n\n".join(f"Paragraph {n}. " + "The pump runs. " * 100 for n in range(9)), id_="d")]
    )
    best = counted.retrieve("Paragraph 5", mode="lexical", top_k=1).to_nodes()
    fetch = PrevNextNodePostprocessor(docstore=counted.storage_context.docstore, num_nodes=1, mode="both")
    places = [hit.node.metadata["chunk_index"] for hit in fetch.postprocess_nodes(best)]
    middle = best[0].node.metadata["chunk_index"]
    assert places == [middle - 1, middle, middle + 1]


# ---- loading an index ----------------------------------------------------------------------------------------------


@pytest.fixture
def stock_store(tmp_path: Path) -> Path:
    """What the stock assembly persists: FAISS, docstore, index store."""
    import faiss

    model = CountingEmbedding()
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(model.dimensions))
    context = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex.from_documents([MANUAL, REPORT], storage_context=context, embed_model=model)
    context.persist(tmp_path / "stock")
    return tmp_path / "stock"


def test_the_stock_loader_fails_on_a_faiss_file_but_not_open_storage_context(
    stock_store: Path, counted: Project
) -> None:
    with pytest.raises(UnicodeDecodeError):
        StorageContext.from_defaults(persist_dir=str(stock_store))

    report = counted.ingest([MANUAL, REPORT])
    context = open_storage_context(counted.directory / "versions" / str(report.version))
    index = load_index_from_storage(context, embed_model=counted.embed_model)
    assert index.as_retriever(similarity_top_k=1).retrieve("error TS-999")[0].node.ref_doc_id == "manual"


def test_a_fresh_store_leaves_a_stock_index_silently_empty_but_not_this_package(
    stock_store: Path, counted: Project
) -> None:
    import faiss

    empty = FaissVectorStore(faiss_index=faiss.IndexFlatIP(64))
    context = StorageContext.from_defaults(vector_store=empty, persist_dir=str(stock_store))
    index = load_index_from_storage(context, embed_model=CountingEmbedding())
    assert index.as_retriever().retrieve("error TS-999") == []

    counted.ingest([MANUAL, REPORT])
    again = load_index_from_storage(counted.storage_context, embed_model=counted.embed_model)
    assert [hit.node.ref_doc_id for hit in again.as_retriever().retrieve("error TS-999")] == ["manual", "report"]


def test_a_stock_index_without_a_model_needs_a_key_but_not_a_project(counted: Project) -> None:
    counted.ingest([MANUAL, REPORT])
    with pytest.raises(ValueError, match="Could not load OpenAI embedding model"):
        load_index_from_storage(counted.storage_context)
    engine = counted.index.as_query_engine(llm=MockLLM(), similarity_top_k=1)
    assert "TS-999" in str(engine.query("error TS-999"))


# ---- OpenAI's address and key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_llama_index_reads_one_variable_for_the_address_and_this_package_both(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackProvider() as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
        monkeypatch.setenv(variable, provider.api_base)
        stock = OpenAI(model="gpt-4.1").api_base
        assert (stock == provider.api_base) == (variable == "OPENAI_API_BASE")
        assert load_llm("openai:gpt-4.1").complete("Situate <chunk>Revenue grew.</chunk>").text
        assert len(load_embed_model("openai:text-embedding-3-small").get_text_embedding("Revenue grew.")) == 1536
        assert [call.path for call in provider.calls()] == ["/v1/chat/completions", "/v1/embeddings"]


def test_stock_models_serialise_their_key_but_not_our_settings(
    manager: ProjectManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-shown")
    assert "sk-shown" in str(OpenAI(model="gpt-4.1").to_dict())
    assert "sk-shown" in str(OpenAIEmbedding().to_dict())
    project = manager.create("keyless", ProjectConfig(), llm=OpenAI(model="gpt-4.1"), embed_model=OpenAIEmbedding())
    assert "sk-shown" not in str(project.config.model_dump()) + repr(project) + repr(project.config)
