"""Column headers of continued tables, and their effect on search: `python -m tests.benchmarks.tables --data DATA`.

For the PDFs of each set, prints the number of tables with column headers, the number of chunks, the number of chunks
that begin with a row of figures, and how many of these contain column headers. Then prints recall with and without the
headers on the same text (`ProjectConfig.local()`, structural contexts, hybrid search).
"""

from __future__ import annotations

import re
import tempfile

from llama_index.core.schema import Document

from llama_index_contextual import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.metadata import HEADINGS, PAGES, TABLE_HEAD, TABLES, DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import Ranks, build, bundle, differences, options, row
from tests.benchmarks.sets import KS, QuestionSet, load, score

_FIGURES = re.compile(r"[^\n]{0,90}?(?:[ $€£]+(?:\(?\d[\d,.]*\)?%?|[—–-])\)?){2,}[ %]*(?:\n|\Z)")


def without_tables(document: Document) -> Document:
    """Return a document whose tables are not known."""
    metadata = {key: value for key, value in document.metadata.items() if key != TABLES}
    return document.model_copy(update={"metadata": {PAGES: "{}", HEADINGS: "[]", **metadata}})


def ranks(questions: QuestionSet, documents: list[Document]) -> Ranks:
    """Return the ranks of the evidence of each question among the chunks of these documents."""
    questions.__dict__["documents"] = documents
    with tempfile.TemporaryDirectory() as root:
        retriever = build(ProjectManager(root), questions, "structural").as_retriever(similarity_top_k=max(KS))
        return score(questions.questions, lambda question: retriever.respond(bundle(question)).results)[2]


def main() -> None:
    """Print the figures."""
    parser = options(__doc__)
    parser.set_defaults(sets=["contracts", "filings"])
    arguments = parser.parse_args()
    for name in arguments.sets:
        questions = load(arguments.data, name)
        documents = questions.documents
        tables = sum(len(DocumentMap.from_metadata(document.metadata).tables) for document in documents)
        chunks = ChunkNodeParser()(SegmentNodeParser()(documents))
        carrying = sum(TABLE_HEAD in chunk.metadata for chunk in chunks)
        rows = [chunk for chunk in chunks if _FIGURES.match(chunk.get_content())]
        named = sum(TABLE_HEAD in chunk.metadata for chunk in rows)
        print(f"{name}: {len(documents)} documents, {tables} tables with a head, {len(chunks)} chunks")
        print(f"  {carrying} chunks carry a head; of {len(rows)} that begin with a row of figures, {named} do")
        before, after = (
            ranks(questions, given) for given in ([without_tables(document) for document in documents], documents)
        )
        print(row(f"{name} without heads", before), row(f"{name} with heads", after), sep="\n")
        print(f"with − without: {differences(after, before)}", flush=True)


if __name__ == "__main__":
    main()
