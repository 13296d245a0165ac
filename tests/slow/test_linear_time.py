"""The time of every regular expression, and of functions that read text from outside, grows linearly with the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual import ChunkNodeParser
from llama_index_contextual._utils.redaction import _forms, _without_parts
from llama_index_contextual._utils.templates import _marks_of
from llama_index_contextual.answering.citations import (
    FoldedText,
    Passage,
    _Layout,
    check_citations,
    citations_of,
    is_stitched,
    quotations_of,
    uncited,
)
from llama_index_contextual.answering.guards import Guards, is_safe, mask_personal_data
from llama_index_contextual.answering.intent import aspects_of
from llama_index_contextual.answering.prompts import defused
from llama_index_contextual.answering.query_engine import question_form
from llama_index_contextual.answering.streaming import StreamFilter
from llama_index_contextual.api.chat import escape_markdown, person_text, task_reply
from llama_index_contextual.contextualizer.prompts import neutralise
from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.cutting import is_code, units_of
from llama_index_contextual.index.dates import document_date, sketch_of, superseded
from llama_index_contextual.index.manifest import DocumentRecord, Records
from llama_index_contextual.index.rows import cells_of, cells_of_figures, rows_at
from llama_index_contextual.index.units import Units
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.plan import Job, jobs_of_source
from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.charts import chart_blocks
from llama_index_contextual.readers.files import FileAccount, FileSource, ReadLimits
from llama_index_contextual.readers.office import READERS
from llama_index_contextual.readers.package import Package, parse_xml
from llama_index_contextual.readers.word import _Body, _Document
from llama_index_contextual.search.filters import to_filters
from llama_index_contextual.search.response import Source
from tests.integration.readers.office_files import WORD, docx
from tests.support.expressions import Expression, calls, expressions, hostile_runs
from tests.support.growth import MAX_EXPONENT, Run, exponent, is_suspicious, seconds

TEMPLATE = "<document>\n{segment}\n</document>\n[DOC]\n{chunk}\n[/DOC]\n```\n{header}\n```\nQuestion: {question}"
LOCAL = {
    "_utils.redaction._pattern": {"keys": frozenset({"sk-0123456789"})},
    "_utils.templates._marks_of": {"marks": [_marks_of(TEMPLATE).pattern]},
    "_utils.text.excerpt": {"term": "ts-999"},
    "contextualizer.prompts._split_lines": {"codes": ["de", "german"]},
    "cli.doctor._writer": {"lock": Path(__file__)},
    "embeddings.languages.knows_language": {"names": "de|fr"},
    "tools.document_tools.compile_pattern": {"expression": "pump", "flags": 0},  # a user's expression has a time limit
    "ui.ask._edits": {"pattern": r"<[^<>]*>|1,204"},
}
"""Values of the variables that expressions are made of."""
PARTS, DRAWS = 8, 20


@lru_cache(maxsize=1)
def collected() -> list[Expression]:
    return expressions(LOCAL)


def growth(expression: Expression, draws: int = DRAWS) -> list[str]:
    """Return a line for each method of an expression whose time grows faster than the text."""
    lines = []
    for method, call in calls(expression):
        for run in hostile_runs(expression.compiled, draws):
            if is_suspicious(call, run) and (value := exponent(call, run)) >= MAX_EXPONENT:
                lines.append(f"{value:.2f} {method} {expression}: {run}")
                break
    return lines


@pytest.mark.parametrize("part", range(PARTS))
def test_every_expression_takes_linear_time(part: int) -> None:
    slow = [line for expression in collected()[part::PARTS] for line in growth(expression)]
    assert not slow, "\n".join(slow)


def test_the_scan_sees_expressions_of_all_kinds() -> None:
    places = [expression.where for expression in collected()]
    assert len(places) > 250
    for place in ("answering/prompts.py", " PROVIDERS", "ui/ask.py", "_utils/templates.py:"):
        assert any(place in where for where in places), place


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s+$", "search"),
        (r"\s*+x", "sub"),  # possessive, but each place of a run is a start
        (r"\[(?:\s*source\s*\s*[^\[\]]*\d)\]", "search"),
        (r"(?:a+)+!", "match"),
        (r"<[^>]*>", "findall"),
    ],
)
def test_the_measurement_reports_expressions_that_take_longer(pattern: str, method: str) -> None:
    assert growth(Expression("here", re.compile(pattern), {method}), draws=100)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [(r"(?<!\s)\s+x", "search"), (r"<[^<>]*>", "sub"), (r"\S+\s*+\S", "fullmatch"), (r"a{1,40}b", "search")],
)
def test_the_measurement_accepts_expressions_that_take_linear_time(pattern: str, method: str) -> None:
    assert not growth(Expression("here", re.compile(pattern), {method}), draws=100)


def _build(text: str) -> None:
    DocumentBuilder(FileAccount(Path("long.html"), 10**9, ReadLimits())).paragraph(text)


def _reader(name: str) -> Callable[[str], object]:
    """Return a function that reads a text as the content of a file, in this process."""
    path = Path(name)

    def read_text(text: str) -> object:
        data = text.encode("utf-8", "replace")
        with suppress(ReadError):  # such as "contains only white space"
            return READERS[path.suffix](FileSource(path, data, FileAccount(path, 10**9, ReadLimits())))
        return None

    return read_text


def _table(text: str) -> None:
    builder = DocumentBuilder(FileAccount(Path("long.xlsx"), 10**9, ReadLimits()))
    builder.table([["a", "b"], [text, text], [text, "1"]])


def _chunks(text: str) -> None:
    ChunkNodeParser(chunk_size=20, chunk_overlap=2)([Document(text=text, id_="a")])


def _stream(text: str, style: str = "cited", guards: Guards | None = None) -> None:
    stream = StreamFilter(style, guards, passages=[Passage("")] * 2)
    for start in range(0, len(text), 4):
        stream.feed(text[start : start + 4])
    stream.flush()


def _check(answer: str = "It is 1,234 [Source 1].", passage: str = "It is 1,234.", question: str = "") -> None:
    node = TextNode(text=passage)
    check_citations(
        answer, [Passage(passage, Source.of(node), "", lambda start, end: Source.of(node))], question=question
    )


def _filters(text: str) -> None:
    with suppress(InputError):
        to_filters(text)


def _cited(text: str) -> None:
    layout = _Layout(text, citations_of(text))
    for _, start, _, _ in layout.statements():
        layout.cited_near(start)
        layout.citations_at(start)


WRAPPED = "the water of the garden is metered apart from that of the house"
FUNCTIONS: dict[str, tuple[Callable[[str], object], list[Run]]] = {
    "task of a chat client": (
        task_reply,
        [
            *(Run("### Task:\n", one) for one in (" ", "\n", "<", "<chat_history")),
            *(Run("### Task:\n<chat_history>", one) for one in ("JSON format: ", "USER: ", "\n", "USER:  \n")),
        ],
    ),
    "question in a prompt of a chat client": (
        person_text,
        [Run("### Task:\nRespond to the user query using the provided context", "<user_query>")],
    ),
    "document text in Markdown": (escape_markdown, [Run("", "!["), Run("", "\\")]),
    "source marks": (
        defused,
        [Run("[Source", " "), Run("[Source", "\u00a0"), Run("[source ", "1"), Run("", "[source ")],
    ),
    "prompt tags": (neutralise, [Run("<", " "), Run("", "< /"), Run("<", "\u3000", "document")]),
    "citations": (uncited, [Run("", " "), Run("", "[Source "), Run("", " [Source 1")]),
    "quotations": (
        quotations_of,
        [Run("", "“"), Run("> ", " "), Run('"', "a "), Run("", '"a '), Run("", "'a "), Run("", '> a\n\n"b c d"\n\n')],
    ),
    "citations of statements": (
        _cited,
        [
            Run("", "A b c [Source 1]. "),
            Run("", "A b c.\n\n"),
            Run("A [Source 1].\n\n", "A b c. "),
            Run("", "[Source 1] "),
        ],
    ),
    "stitched quotations": (
        lambda text: is_stitched(text, [FoldedText("a b c"), FoldedText("d e f")]),
        [Run("", "a b c ")],
    ),
    "parts of keys": (
        lambda text: _without_parts(text, _forms(frozenset({"aaaaaaaaaaaaaaaab1aaaaaaaaaaaaa"}))),
        [
            Run("", "a"),
            Run("", "aaaaaaaab1"),
            Run("", " "),
            Run("", "\\"),
            Run("", "%61"),
            Run("a", "&#97;"),
            Run("%", "25"),
        ],
    ),
    "personal data": (mask_personal_data, [Run("", "a@b.example "), Run("", "a."), Run("", "4")]),
    "comparisons": (aspects_of, [Run("", "compare "), Run("", "a vs ")]),
    "paragraphs": (_build, [Run("a", "\u00a0", "b"), Run("", " \n"), Run("a", " ", "b")]),
    "units": (
        lambda text: units_of(text, {}),
        [
            *(Run("", repeated) for repeated in (" ", "\n", " \n", "\t", "|", "|\n", "a. ", "1 ", "a  b\t", "1\n")),
            *(Run("", f"{WRAPPED} {rest}\n") for rest in ("", ",", "and", "of\n4 zones of the town are", "|", "  1")),
            *(Run("", f"{first} {WRAPPED} of\n") for first in ("4", "12.", "4.1", "0.5", "·", "#")),
            Run("a", "|"),
            Run("4 ", f"{WRAPPED} of\n4 "),
            Run("a  b\n", "1  2\n"),
        ],
    ),
    "arrays of units": (
        lambda text: Units.of([(text, {"title": text})], Analyzer("english", has_periods=True)),
        [Run("", "a. "), Run("", "a\n"), Run("", "a"), Run("", "2018 "), Run("", "\u4e2d"), Run("", f"{WRAPPED}\n")],
    ),
    "source code": (is_code, [Run("", "(a"), Run("", "f()"), Run("", "= ")]),
    "dates": (
        lambda text: document_date({"date": text}, text, text, text),
        [Run("", "Date: "), Run("", "1."), Run("", "2025-"), Run("", "March "), Run("", "a,\n"), Run("", " ")],
    ),
    "sketches of texts": (sketch_of, [Run("", "a "), Run("", "a"), Run("", " ")]),
    "editions": (
        lambda text: superseded(
            [DocumentRecord(doc_id=text + end, content_hash="", title=text, sketch=(1,)) for end in ("v1.md", "v2.md")]
        ),
        [Run("", "v1 "), Run("", "v1."), Run("", "(1)"), Run("", "final "), Run("", "2024-"), Run("", "_")],
    ),
    "conditions": (
        _filters,
        [Run("a=", "["), Run("", "a"), Run("a", "="), Run("a=", "1"), Run("a", " "), Run("{", '"a":{'), Run("", "~")],
    ),
    "cells": (cells_of, [Run("Revenue", " 1"), Run("a", " %"), Run("a", " (1) %"), Run("a", "  ")]),
    "cells of figures": (
        lambda text: cells_of_figures(text, 20),
        [
            Run("a", " 1"),
            Run("a", " %"),
            Run("a 1", " $"),
            Run("a 1", "1"),
            Run("a 1", "."),
            Run("a -", "-"),
            Run("a", " ("),
        ],
    ),
    "table rows": (
        lambda text: rows_at(text, 0, len(text.partition("\n")[0])),
        [Run("", "a 1 2\n"), Run("", "| a | 1 |\n"), Run("a  1\n", "a  1\n"), Run("", "|---|---|\n")],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_read_text_from_outside_take_linear_time(name: str) -> None:
    call, runs = FUNCTIONS[name]
    slow = {str(run): value for run in runs if (value := exponent(call, run)) >= MAX_EXPONENT}
    assert not slow


CITATIONS = [
    *(
        Run("", one)
        for one in ("(", "[1", "[1]", "source ", "source 1, ", "¹", "(source ", "来源1和", "[manual.pdf", "【1†")
    ),
    *(Run("", one) for one in ("<sup>", "sources\n")),
    *(Run("[Source 1", ", 2"), Run("[", " "), Run("[", "a b. "), Run("sources 1", " and 2")),
]
CHARACTERS = (" ", "\u00a0", "a", "1", "<", "[", '"', "`", "*", "|", "#", "---\n", "a\n")
COMMON = [Run("", repeated) for repeated in CHARACTERS]
WHOLE_TEXTS: dict[str, tuple[Callable[[str], object], list[Run]]] = {
    # A long paragraph of several lines takes longer once, when it exceeds the memory of the expression.
    "text files": (_reader("a.txt"), [*COMMON[:-2], Run("", "A\n\n"), Run("", "1.1 "), Run("", "1.1 a\n\n")]),
    "Markdown": (
        _reader("a.md"),
        [*COMMON, Run("", "# a\n"), Run("", "- a\n"), Run("| a | b |\n|---|---|\n", "| a "), Run("---\na: ", "[")],
    ),
    "HTML": (
        _reader("a.html"),
        [
            *COMMON,
            Run("<p>", "&amp;"),
            Run("", "<p>"),
            Run("<table>", "<tr><td>a"),
            Run("<pre>", "\n"),
            Run("<p a=", '"'),
        ],
    ),
    "CSV": (_reader("a.csv"), [*COMMON, Run("", ","), Run("", "a,"), Run('a,b\n"', "a\n"), Run("a;b\n", "1;2\n")]),
    "mails": (
        _reader("a.eml"),
        [
            *(Run(f"Subject: a\n{run.before}", run.repeated) for run in COMMON),
            *(Run("Subject: a\n\n", run.repeated) for run in COMMON),
            Run("Subject: ", "=?utf-8?q?a?= "),
            Run("From: ", "<a@b.c>, "),
        ],
    ),
    "cells of sheets": (_table, COMMON),
    "chunks": (_chunks, [*COMMON, Run("", "\u4e2d"), Run("", "\u0301"), Run("", "a. "), Run("", "a\n\n")]),
    "passages": (lambda text: _check(passage=text), [*COMMON, Run("", "1,234 "), Run("", "a. ")]),
    "answers": (_check, [*COMMON, *CITATIONS, Run("", "1,234 [Source 1]. "), Run("", '"It is" [Source 1] ')]),
    "questions": (lambda text: _check(question=text), [*COMMON, Run("", "1,234 ")]),
    "forms of questions": (question_form, [*COMMON, Run("", "?"), Run("", "WHO "), Run("a", "\u200b", "b")]),
    "streams": (_stream, [*COMMON, *CITATIONS, Run("", "[Source 1"), Run("[", "1, ")]),
    "streams of reasoning": (partial(_stream, style="chain_of_thought"), [*COMMON, Run("", "a b\n")]),
    "streams of code": (partial(_stream, guards=Guards(mask=())), [Run("```\n", "a = 1\n\n")]),
    "links": (is_safe, [Run("a&", "amp;"), Run("", "&"), Run("", "\\")]),
}
STEPS = 1.5
"""Limit of the exponent if time grows in steps, and faster when a text no longer fits in the cache of the processor."""


@pytest.mark.parametrize("name", WHOLE_TEXTS)
def test_readers_parsers_checks_and_streams_take_linear_time(name: str) -> None:
    call, runs = WHOLE_TEXTS[name]
    call(runs[0].text(8))  # load what is loaded once
    slow = {str(run): value for run in runs if (value := exponent(call, run)) >= STEPS}
    assert not slow


def test_the_dates_of_a_chart_take_linear_time() -> None:
    def read_chart(points: int) -> None:
        values = "".join(f'<pt idx="{at}"><v>{at}</v></pt>' for at in range(points))
        cache = f"<val><numCache><formatCode>yyyy-mm-dd</formatCode>{values}</numCache></val>"
        plot = f"<chart><plotArea><barChart><ser>{cache}</ser></barChart></plotArea></chart>"
        chart_blocks(parse_xml(f"<chartSpace>{'<other/>' * points}{plot}</chartSpace>".encode()))

    short, long = (min(seconds(read_chart, points) for _ in range(3)) for points in (1_000, 8_000))
    assert long < 20 * short


def test_a_paragraph_of_word_with_many_breaks_takes_linear_time() -> None:
    document = _Document(Package(docx("a")), None)

    def prepare(breaks: int) -> None:
        runs = '<w:t>a</w:t><w:br w:type="page"/>' * breaks
        root = parse_xml(f'<w:body xmlns:w="{WORD}"><w:p><w:r>{runs}</w:r></w:p></w:body>'.encode())
        _Body(document, root, {}).prepare()

    short, long = (min(seconds(prepare, breaks) for _ in range(3)) for breaks in (2_000, 8_000))
    assert long < 8 * short


def test_documents_of_a_source_with_equal_names_and_texts_take_linear_time() -> None:
    options = RunOptions(purpose="sync", source="wiki", id_key="page")

    def name(documents: int) -> None:
        records = Records(DocumentRecord(doc_id=f"wiki/{n}", content_hash="1", source="wiki") for n in range(documents))
        jobs = [Job(Document(text="a", metadata={"page": "p"}), None, str(n), "1") for n in range(documents)]
        assert len({job.doc_id for job in jobs_of_source(jobs, options, records)}) == documents

    short, long = (min(seconds(name, documents) for _ in range(3)) for documents in (500, 4_000))
    assert long < 20 * short
