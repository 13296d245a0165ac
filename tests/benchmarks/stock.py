"""Recall of LlamaIndex's own components: `python -m tests.benchmarks.stock --data DATA --out stock.json`.

Measures SentenceSplitter, FaissVectorStore with inner products of unit vectors (with L2 distances, the farthest chunk
would be ranked first), BM25Retriever, and QueryFusionRetriever with reciprocal ranks. There are no contexts, except for
the recorded ones of the code set, which consists of ready chunks. The embedding and the scoring of results (see `sets`)
are the same as for this package. `python -m tests.benchmarks.quality --against stock.json` compares both, question by
question.
"""

from __future__ import annotations

import json
from pathlib import Path

import faiss
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, TextNode
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissVectorStore
from pypdf import PdfReader

from llama_index_contextual.models import load_embed_model
from llama_index_contextual.search.results import RetrievalResponse
from tests.benchmarks.quality import HEAD, Ranks, options, row, settings_of
from tests.benchmarks.sets import KS, QuestionSet, load, score

HIDDEN = ["file_name", "page_start", "page_end"]


def pages(file: Path) -> list[Document]:
    """Return one Document per page, as LlamaIndex's PDF reader does."""
    import pypdfium2

    with pypdfium2.PdfDocument(file) as pdf:
        texts = [page.get_textpage().get_text_range() for page in pdf]
    return [
        document(file.name, text, page_start=number, page_end=number) for number, text in enumerate(texts, 1) if text
    ]


def document(name: str, text: str, **metadata: int) -> Document:
    """Return a Document of which only the text is embedded."""
    return Document(
        text=text,
        metadata={"file_name": name, **metadata},
        excluded_embed_metadata_keys=HIDDEN,
        excluded_llm_metadata_keys=HIDDEN[1:],
    )


def documents(questions: QuestionSet) -> list[Document]:
    """Return the Documents of a folder: PDFs with page evidence by page, the others whole."""
    assert questions.folder is not None
    files = sorted(questions.folder.iterdir())
    if questions.name == "filings":
        return [page for file in files for page in pages(file)]
    if questions.name == "contracts":
        return [document(file.name, "\n".join(page.extract_text() for page in PdfReader(file).pages)) for file in files]
    return [document(file.name, file.read_bytes().decode()) for file in files]


def chunks(questions: QuestionSet, context: str, chunk_size: int) -> list[BaseNode]:
    """Return the chunks of a set, the ready ones with their recorded contexts if asked for."""
    if questions.folder is None:
        before = {chunk["chunk_id"]: chunk["context"] + "\n\n" for chunk in questions.chunks if context == "llm"}
        return [
            TextNode(id_=chunk["chunk_id"], text=before.get(chunk["chunk_id"], "") + chunk["text"])
            for chunk in questions.chunks
        ]
    splitter = SentenceSplitter(chunk_size=chunk_size, chunk_overlap=chunk_size // 10)
    return splitter.get_nodes_from_documents(documents(questions))


def vector_index(nodes: list[BaseNode], embed_model: BaseEmbedding) -> VectorStoreIndex:
    """Embed the chunks into a FAISS index of inner products."""
    length = len(embed_model.get_query_embedding("length"))
    store = StorageContext.from_defaults(vector_store=FaissVectorStore(faiss.IndexFlatIP(length)))
    return VectorStoreIndex(nodes, storage_context=store, embed_model=embed_model)


def fused(semantic: BaseRetriever, lexical: BaseRetriever) -> QueryFusionRetriever:
    """Return the fusion of both rankings."""
    return QueryFusionRetriever(
        [semantic, lexical],
        llm=MockLLM(),
        mode=FUSION_MODES.RECIPROCAL_RANK,
        num_queries=1,
        use_async=False,
        similarity_top_k=max(KS),
    )


def retrievers(nodes: list[BaseNode], embed_model: BaseEmbedding) -> dict[str, BaseRetriever]:
    """Return both legs and their fusion."""
    lexical = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=max(KS))
    semantic = vector_index(nodes, embed_model).as_retriever(similarity_top_k=max(KS))
    return {"lexical": lexical, "semantic": semantic, "hybrid": fused(semantic, lexical)}


def main() -> None:
    """Print the table, and write the ranks of every question."""
    parser = options(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config, embed_model = settings_of(arguments)
    model = embed_model or load_embed_model(config.embed_model)
    kept: dict[str, Ranks] = {}
    print(f"{'set':14s} {'context':11s} {'mode':9s}{HEAD}")
    for name in arguments.sets:
        questions = load(arguments.data, name)
        for context in ("none", "llm") if questions.chunks else ("none",):
            nodes = chunks(questions, context, config.chunk_size)
            for mode, retriever in retrievers(nodes, model).items():
                _, _, ranks = score(
                    questions.questions, lambda q, r=retriever: RetrievalResponse.of_nodes(q, r.retrieve(q)).results
                )
                kept[f"{name}/{context}/{mode}"] = ranks
                print(row(f"{name} {context} {mode}", ranks), flush=True)
    arguments.out.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
