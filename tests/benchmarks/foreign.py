"""Characters that LlamaIndex's query engine sends to its LLM: `python -m tests.benchmarks.foreign`.

The example documents are split by LlamaIndex's node parsers and by those of this package, and indexed in a
VectorStoreIndex without contexts, with structural contexts and with contexts written by an LLM. A recording LLM
counts the characters of the prompts for the first 20 questions. The prompts without contexts contain the same hits.
The LLM that writes the contexts is a stand-in, whose contexts have 83 tokens, as those recorded for contracts have on
average.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from itertools import product
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.node_parser import (
    MarkdownNodeParser,
    SemanticSplitterNodeParser,
    SentenceSplitter,
    SentenceWindowNodeParser,
    TokenTextSplitter,
)
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TransformComponent
from pydantic import PrivateAttr

from llama_index_contextual import (
    ChunkNodeParser,
    LLMContextualizer,
    SegmentNodeParser,
    StructuralContextualizer,
    WordLlamaEmbedding,
    read_documents,
)
from tests.support.examples import EXAMPLES

_WINDOWS = MetadataReplacementPostProcessor(target_metadata_key="window")
"""Replaces sentences by the text around them, as its documentation recommends for SentenceWindowNodeParser."""

CONTEXT = (
    "The passage is about the pressure booster and states which faults it reports, what the operators have to check"
    " first, and when the unit resets by itself. It belongs to the part of the text that covers this equipment, and"
    " the limits in it apply to this part alone; the other parts repeat the same steps for other units, with other"
    " limits. The steps before it say how the unit is isolated, and those after it how it is put back into service."
)


class Recorder(CustomLLM):
    """LLM that answers every prompt in the same way, and records the prompts."""

    answer: str = "An answer."
    _prompts: list[str] = PrivateAttr(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """All prompts, in order."""
        return self._prompts

    @property
    def metadata(self) -> LLMMetadata:
        """Return the limits of the model."""
        return LLMMetadata(context_window=100_000, num_output=500, model_name="recorder")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Record the prompt."""
        self._prompts.append(prompt)
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Record the prompt."""
        yield self.complete(prompt)


def splitters(chunk_size: int) -> dict[str, list[TransformComponent]]:
    """Return the node parsers by name."""
    overlap = chunk_size // 10
    return {
        "SentenceSplitter": [SentenceSplitter(chunk_size=chunk_size, chunk_overlap=overlap)],
        "TokenTextSplitter": [TokenTextSplitter(chunk_size=chunk_size, chunk_overlap=overlap)],
        "MarkdownNodeParser": [MarkdownNodeParser()],
        "SemanticSplitterNodeParser": [SemanticSplitterNodeParser(embed_model=WordLlamaEmbedding())],
        "SentenceWindowNodeParser": [SentenceWindowNodeParser()],
        "ChunkNodeParser": [SegmentNodeParser(), ChunkNodeParser(chunk_size=chunk_size, chunk_overlap=overlap)],
    }


def stock_documents() -> list[Document]:
    """Return the text files as Documents with the metadata of LlamaIndex's SimpleDirectoryReader."""
    hidden = ["file_name", "file_type", "file_size", "creation_date", "last_modified_date", "last_accessed_date"]
    return [
        Document(
            text=path.read_text(encoding="utf-8"),
            metadata={"file_path": str(path), "file_name": path.name, "file_type": "text/plain", "file_size": 1},
            excluded_embed_metadata_keys=hidden,
            excluded_llm_metadata_keys=hidden,
        )
        for path in sorted((EXAMPLES / "data").glob("*.[mt][dx]*"))
    ]


def characters(plain: Sequence[BaseNode], chunks: Sequence[BaseNode], questions: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of characters that a query engine sends for the same hits without and with contexts."""
    llm = Recorder()
    engine = VectorStoreIndex(chunks, embed_model=WordLlamaEmbedding()).as_query_engine(llm=llm)
    without = {node.node_id: node for node in plain}
    for query in map(QueryBundle, questions):
        hits = engine.retrieve(query)
        for nodes in ([without[hit.node_id] for hit in hits], [hit.node for hit in hits]):
            engine.synthesize(query, _WINDOWS.postprocess_nodes([NodeWithScore(node=node) for node in nodes]))
    sizes = list(map(len, llm.prompts))
    return sum(sizes[::2]), sum(sizes[1::2])


def main() -> None:
    """Print a line for each node parser and chunk size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk-size", type=int, nargs="+", default=[400, 800])
    arguments = parser.parse_args()
    logging.getLogger("llama_index_contextual").setLevel(logging.ERROR)
    lines = (EXAMPLES / "data" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines][:20]
    origins = {
        "read_documents": read_documents([EXAMPLES / "data"]).documents,
        "SimpleDirectoryReader": stock_documents(),
    }
    head = ("documents", "node parser", "size", "chunks", "context", "without", "with")
    print("{:22s} {:27s} {:>4s} {:>6s} {:10s} {:>8s} {:>8s}".format(*head))
    for (origin, documents), size in product(origins.items(), arguments.chunk_size):
        for name, steps in splitters(size).items():
            nodes = run_transformations(documents, steps)
            contextualizers = [StructuralContextualizer(), LLMContextualizer(llm=Recorder(answer=CONTEXT))]
            for contextualizer in contextualizers:
                without, sent = characters(nodes, contextualizer(nodes), questions)
                kind = contextualizer.class_name().removesuffix("Contextualizer").lower()
                head = f"{origin:22s} {name:27s} {size:4d} {len(nodes):6d} {kind:10s}"
                print(f"{head} {without:8,d} {sent:8,d}  {sent / without:.3f}", flush=True)


if __name__ == "__main__":
    main()
