"""Questions about the documents, written by an LLM through LlamaIndex's own generator."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, TextNode

from llama_index_contextual.calls import run_sync
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.storage.version import OpenVersion

QUESTIONS = 50
PER_CHUNK = 2


def generate_questions(
    version: OpenVersion,
    llm: LLM,
    *,
    number: int = QUESTIONS,
    left_out: frozenset[str] = frozenset(),
    seed: int = 0,
) -> list[Question]:
    """Let an LLM write questions about chunks drawn at random, by LlamaIndex's `DatasetGenerator`.

    The LLM sees the text of a chunk and nothing of its document or context, so the evidence is that chunk. Questions
    written from a passage share its words: they are easier than those of people, for every way of retrieval.

    Args:
        version: Where the chunks are.
        llm: Any LlamaIndex LLM; one call for every two questions.
        number: Questions, at most.
        left_out: Ids of documents that are not asked about.
        seed: Of the random numbers.

    Raises:
        InputError: `number` is not positive, or the LLM wrote no question.
    """
    if number < 1:
        raise InputError(f"{number} questions were asked for: take at least one.", value=number)
    ids = [record.doc_id for record in version.manifest.documents if record.doc_id not in left_out]
    chunks = [node for doc_id in ids for node in version.docstore.iterate(doc_id=doc_id)]
    wanted = min(len(chunks), -(-number // PER_CHUNK))
    chosen = random.Random(seed).sample(chunks, wanted)
    questions: list[Question] = []
    for chunk in chosen:
        for text in _ask(llm, chunk):
            questions.append(Question(text=text, evidence=(_evidence(chunk),), id=f"generated-{len(questions) + 1}"))
    if not questions:
        raise InputError("The LLM wrote no question about the documents: name a file of questions.")
    return questions[:number]


def _ask(llm: LLM, chunk: BaseNode) -> Sequence[str]:
    from llama_index.core.evaluation import DatasetGenerator

    node = TextNode(text=chunk.get_content())
    with warnings.catch_warnings(record=True):
        # It calls itself deprecated in favour of a generator that is in no release of llama-index-core any more.
        warnings.simplefilter("always")
        generator = DatasetGenerator([node], llm=llm, num_questions_per_chunk=PER_CHUNK)
        found = run_sync(generator.agenerate_questions_from_nodes)
    return [text for text in dict.fromkeys(found) if text.strip()][:PER_CHUNK]


def _evidence(chunk: BaseNode) -> Evidence:
    start, end = getattr(chunk, "start_char_idx", None), getattr(chunk, "end_char_idx", None)
    if chunk.ref_doc_id is None or start is None or end is None:
        return Evidence(chunk_id=chunk.node_id)
    return Evidence(file=chunk.ref_doc_id, span=(start, end))
