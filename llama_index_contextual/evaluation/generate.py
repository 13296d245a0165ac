"""Generating questions about the documents with an LLM, by LlamaIndex's `DatasetGenerator`."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Sequence

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, TextNode

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe, run_sync
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.index.storable import storable_text
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.models import model_name

QUESTIONS = 50
PER_CHUNK = 2
CONCURRENCY = 8


def generate_questions(
    version: OpenVersion,
    llm: LLM,
    *,
    number: int = QUESTIONS,
    excluded: frozenset[str] = frozenset(),
    seed: int = 0,
) -> list[Question]:
    """Return questions that an LLM writes about chunks drawn at random.

    The prompt contains the text of a chunk without its document and context, so that chunk is the evidence. Questions
    written from a passage share its words, which makes them easier than real questions for every retriever.

    Args:
        version: The version with the chunks.
        llm: Any LlamaIndex LLM; one call for every two questions, up to eight calls at a time.
        number: Maximum number of questions.
        excluded: Ids of documents to exclude.
        seed: Seed of the random numbers.

    Raises:
        InputError: `number` is not positive, or the LLM wrote no question.
        ModelError: The LLM cannot be reached, or rejects the request.
    """
    if number < 1:
        raise InputError(f"The number of questions is {number}: it must be at least 1.", value=number)
    documents = [record.doc_id for record in version.records if record.doc_id not in excluded]
    ids = [node.node_id for doc_id in documents for node in version.docstore.iterate(doc_id=doc_id)]
    chunks = version.docstore.get_nodes(random.Random(seed).sample(ids, min(len(ids), -(-number // PER_CHUNK))))
    with warnings.catch_warnings(record=True):
        # The deprecation warning recommends a class that llama-index-core no longer contains.
        warnings.simplefilter("always")
        answers = run_sync(lambda: _ask_all(llm, chunks))
    questions: list[Question] = []
    for chunk, texts in zip(chunks, answers, strict=True):
        for text in texts:
            questions.append(Question(text=text, evidence=(_evidence(chunk),), id=f"generated-{len(questions) + 1}"))
    if not questions:
        raise InputError("The LLM wrote no question about the documents: name a file of questions.")
    return questions[:number]


async def _ask_all(llm: LLM, chunks: Sequence[BaseNode]) -> list[Sequence[str]]:
    semaphore = asyncio.Semaphore(CONCURRENCY)

    async def ask(connected: LLM, chunk: BaseNode) -> Sequence[str]:
        async with semaphore:
            return await acall(lambda: _ask(connected, chunk), RetryPolicy())

    async with own_client(llm) as connected:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(connected, chunk)) for chunk in chunks]
        except ExceptionGroup as errors:  # any LLM class may raise anything; the first error cancels the other tasks
            error = errors.exceptions[0]
            raise ModelError(describe(error, setting="llm", model=model_name(llm)), setting="llm") from error
    return [task.result() for task in tasks]


async def _ask(llm: LLM, chunk: BaseNode) -> Sequence[str]:
    from llama_index.core.evaluation import DatasetGenerator

    generator = DatasetGenerator([TextNode(text=chunk.get_content())], llm=llm, num_questions_per_chunk=PER_CHUNK)
    questions = await generator.agenerate_questions_from_nodes()
    texts = (scrub(storable_text(text)).strip() for text in questions)
    return [text for text in dict.fromkeys(texts) if text][:PER_CHUNK]


def _evidence(chunk: BaseNode) -> Evidence:
    start, end = getattr(chunk, "start_char_idx", None), getattr(chunk, "end_char_idx", None)
    if chunk.ref_doc_id is None or start is None or end is None:
        return Evidence(chunk_id=chunk.node_id)
    return Evidence(file=chunk.ref_doc_id, span=(start, end))
