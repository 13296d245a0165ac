"""One language of filters: 110 filters through seven doors select the same documents, or get the same sentence."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

pytest.importorskip("agno", reason='needs the extra: pip install "llama-index-contextual[agno]"')
pytest.importorskip("mcp", reason='needs the extra: pip install "llama-index-contextual[mcp]"')
pytest.importorskip("starlette", reason='needs the extra: pip install "llama-index-contextual[ui]"')

from agno.filters import AND, CONTAINS, EQ, GT, GTE, IN, LTE, NEQ, NOT, OR
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from mcp.server.mcpserver.exceptions import ToolError
from starlette.testclient import TestClient

from llama_index_contextual.agno import ContextualKnowledge
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.mcp import make_server
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.app import make_app
from tests.support.cli import run

GERMAN = "Die Pumpe muss nach dem Halt zehn Minuten stehen und wird dann von dem Betrieb geprüft."
TEXTS = {
    "hr/leave-v1.md": "# Leave\n\nLast updated: 3 March 2024\n\nThe pump of the plant has thirty days of leave.",
    "hr/leave-v2.md": "# Leave\n\nLast updated: 9 May 2025\n\nThe pump of the plant has thirty days of leave.",
    "legal/lease.txt": "Date: 2023-11-30\n\nThe pump of the lease is described in the second section of the text.",
    "legal/old/notes.md": f"# Notizen\n\nStand: 1.2.2022\n\n{GERMAN}",
    "table.csv": "part,price\npump,3\nvalve,4\n",
}
FACTS = {
    "hr/leave-v1.md": {"dept": "hr", "year": 2024, "open": True, "tags": ["leave", "old"], "rate": 1.5},
    "hr/leave-v2.md": {"dept": "hr", "year": 2025, "open": True, "tags": ["leave"], "rate": 2},
    "legal/lease.txt": {"dept": "legal", "year": 2023, "open": False, "label": "2023"},
    "legal/old/notes.md": {"dept": "legal", "year": 2022, "label": "no. 7"},
}
V1, V2, LEASE, NOTES, TABLE = TEXTS
HR, LEGAL = {V1, V2}, {LEASE, NOTES}
ALL = set(TEXTS)


def llama(key: str, value: Any, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])  # type: ignore[arg-type]


FILTERS: list[tuple[Any, set[str] | str]] = [
    # the user's facts
    ({"dept": "hr"}, HR),
    ("dept=hr", HR),
    ("dept == hr", HR),
    ('{"dept": "hr"}', HR),
    (["dept=hr", "dept=legal"], HR | LEGAL),
    (["dept=hr", "year=2025"], {V2}),
    ({"dept": ["hr", "sales"]}, HR),
    ("dept!=hr", ALL - HR),
    ({"dept": {"!=": "hr"}}, ALL - HR),
    ({"dept": {"nin": ["hr"]}}, ALL - HR),
    ({"dept": {"$in": ["hr"]}}, HR),
    ([{"key": "dept", "value": "hr"}], HR),
    ({"filters": [{"key": "dept", "value": "hr", "operator": "=="}], "condition": "and"}, HR),
    (llama("dept", "hr"), HR),
    (llama("year", 2024, ">="), HR),
    ({"$or": [{"dept": "hr"}, {"year": 2022}]}, HR | {NOTES}),
    ({"$or": [{"dept": "sales"}, {"year": 2022}]}, {NOTES}),
    ("dept~EG", LEGAL),
    # values of another type
    ({"year": 2024}, {V1}),
    ({"year": "2024"}, {V1}),
    ("year=2024", {V1}),
    ("year>=2024", HR),
    ({"year": {"gte": "2024"}}, HR),
    ({"year": {">": "2023", "<": 2025}}, {V1}),
    ({"open": True}, HR),
    ({"open": "true"}, HR),
    ("open=false", {LEASE}),
    ({"label": 2023}, {LEASE}),
    ({"rate": "2.0"}, {V2}),
    ({"tags": "old"}, {V1}),
    ({"tags": ["leave", "other"]}, HR),
    # expressions of Agno
    (EQ("dept", "hr"), HR),
    (AND(EQ("dept", "hr"), GT("year", 2024)), {V2}),
    (OR(EQ("year", "2022"), GTE("year", 2025)), {V2, NOTES}),
    (NOT(EQ("dept", "hr")), ALL - HR),
    (AND(IN("dept", ["legal"]), LTE("year", 2022)), {NOTES}),
    (NEQ("dept", "hr"), ALL - HR),
    (CONTAINS("dept", "LEG"), LEGAL),
    # fields of every document
    ({"type": "markdown"}, HR | {NOTES}),
    ("type=md", HR | {NOTES}),
    ({"type": ["Excel", "text"]}, {TABLE, LEASE}),
    ("type=CSV", {TABLE}),
    ("type!=markdown", {TABLE, LEASE}),
    ({"folder": "legal"}, LEGAL),
    ({"folder": "files/legal/old/"}, {NOTES}),
    ({"folder": {"contains": "ol"}}, {NOTES}),
    ({"language": "de"}, {NOTES}),
    ("language=German", {NOTES}),
    ({"file_name": "lease.txt"}, {LEASE}),
    ("file_name~leave", HR),
    ({"doc_id": "files/table.csv"}, {TABLE}),
    ({"date": 2024}, {V1}),
    ({"date": "2025-05"}, {V2}),
    ("date=9 May 2025", {V2}),
    ({"date": {">=": "2023-11-30", "<": "2025"}}, {V1, LEASE}),
    ({"newest": True, "dept": "hr"}, {V2}),
    ("newest=false", {V1}),
    # blank values
    ({"dept": ""}, ALL),
    ({"dept": "hr", "year": None, "file_name": "", "label": []}, HR),
    ([], ALL),
    ("", ALL),
    # what no document has
    ({"dept": "HR"}, "No document has dept 'HR'; there are hr, legal."),
    ({"dept": ["HR", "Legal"]}, "No document has dept 'HR' or 'Legal'; there are hr, legal."),
    ({"year": "2030"}, "No document has year 2030; there are 2022, 2023, 2024, 2025."),
    ("year>2025", "No document has year > 2025; there are 2022, 2023, 2024, 2025."),
    ("file_name=leese.txt", "No document has file_name 'leese.txt'; there are lease.txt, leave-v1.md, leave-v2.md"),
    ({"type": "pdf"}, "No document has type 'pdf'; there are"),
    ({"folder": "sales"}, "No document has folder 'sales'; there are"),
    ("date=2031", "No document has date 2031; there are"),
    ({"date": "soon"}, "Filter 'date' cannot have the value 'soon': use a year, a month or a day"),
    ({"dept": "hr", "year": 2022}, "No document passes all of the filters together"),
    (
        {"dep": "hr"},
        "No document has the field 'dep'; did you mean 'dept'? The fields are dept, label, open, rate, tags",
    ),
    ({"colour": "red"}, "No document has the field 'colour'; the fields are dept, label, open"),
    ({"dept": {"like": "hr"}}, "Filter 'dept' has no operator 'like': use one of =="),
    ("dept", "'dept' is not FIELD=VALUE, such as kind=report."),
]
QUESTION = "pump"

MIXED_TEXTS = {
    "a.md": f"# Büro\n\nStand: 1.5.2024\n\n{GERMAN} pump",
    "b.md": "# Plan\n\nLast updated: 2 May 2024\n\nThe pump of the plan runs.",
    "c.txt": "Date: 2023-12-31\n\nThe pump of the lease is described in the second section.",
    "d.txt": "Date: 2025-02-01\n\nThe pump of the list is described in the third section.",
    "sub dir/Straße 1.md": f"# Straße\n\nDate: 2025-01-15\n\n{GERMAN} pump",
}
MIXED_FACTS = {
    "a.md": {
        "dept": "Büro Köln",
        "year": 2024,
        "tags": ["water", "old"],
        "label": "v1.0",
        "cost centre": "K-1",
        "n": "7",
    },
    "b.md": {"dept": "hr", "year": "2024", "tags": "old", "label": 'it\'s "x"', "cost centre": "K-2", "n": 8},
    "c.txt": {"dept": "HR", "year": 2023, "tags": ["older"], "ok": True, "note": "a=b, c"},
    "d.txt": {"tags": [1, 2], "ok": False, "year": 2025.5},
    "sub dir/Straße 1.md": {"dept": "hr/legal", "tags": [], "label": "None"},
}
A, B, C, D, S = MIXED_TEXTS
MARKDOWN, EVERY = {A, B, S}, {A, B, C, D, S}


def one(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


def group(*filters: MetadataFilter | MetadataFilters, condition: str = "and") -> MetadataFilters:
    return MetadataFilters(filters=[*filters], condition=FilterCondition(condition))


MIXED_FILTERS: list[tuple[Any, set[str] | str]] = [
    # nested conditions
    ({"$and": [{"dept": "hr"}, {"$or": [{"year": 2024}, {"year": 2023}]}]}, {B}),
    ({"$not": [{"dept": "hr"}, {"dept": "HR"}]}, {A, D, S}),
    ({"$or": [{"$and": [{"dept": "hr"}, {"n": 8}]}, {"year": {">": 2025}}]}, {B, D}),
    ({"$and": [{"$not": {"type": "txt"}}, {"$not": {"language": "german"}}]}, {B}),
    (AND(NOT(EQ("type", "txt")), OR(EQ("dept", "hr"), CONTAINS("dept", "KÖLN"))), {A, B}),
    ([EQ("dept", "hr"), GT("n", 7)], {B}),
    (group(one("dept", "hr"), group(one("year", 2023), one("year", "2024"), condition="or")), {B}),
    (group(group(one("dept", "hr"), condition="not"), one("type", "md")), {A, S}),
    ([["dept=hr"], {"n": {"$gte": 8, "$lt": 9}}], {B}),
    ('["dept=hr", "dept=HR"]', {B, C}),
    # quotation marks, umlauts, blanks and signs
    ("dept=Büro Köln", {A}),
    ("dept='Büro Köln'", {A}),
    ('dept="hr"', {B}),
    ('label=it\'s "x"', {B}),
    ({"cost centre": ["K-1", "K-2"]}, {A, B}),
    (" cost centre = K-2 ", {B}),
    ("note=a=b, c", {C}),
    ("label=None", {S}),
    ({"dept": "hr/legal"}, {S}),
    ("file_name~straße", {S}),
    ({"folder": "sub dir"}, {S}),
    # dates
    ("date>2024-05-01", {B, D, S}),
    ({"date": {"after": "2024-05-01", "before": "2025-02"}}, {B, S}),
    ({"date": {">=": "2024-05", "<=": "2024-05"}}, {A, B}),
    ({"date": ["2023", "2024-05-02"]}, {B, C}),
    ("date=1. Mai 2024", {A}),
    ("date~2024", {A, B}),
    (group(one("date", "2024-05-01", FilterOperator.GT)), {B, D, S}),
    # numbers as text, lists beside single values
    ({"year": ["2024", 2023]}, {A, B, C}),
    ({"n": {">=": "7"}}, {A, B}),
    ({"year": {"nin": ["2024"]}}, {C, D, S}),
    ({"tags": "old"}, {A, B}),
    ("tags!=old", {C, D, S}),
    ({"tags": "1"}, {D}),
    ({"tags": {"any": ["1"]}}, {D}),
    ({"tags": {"all": ["1", 2]}}, {D}),
    ({"tags": {"any": ["water", 1]}}, {A, D}),
    ({"tags": {"nin": ["water", 1]}}, {B, C, S}),
    (group(one("tags", ["old", "water"], FilterOperator.ALL)), {A}),
    (group(one("tags", ["old"], FilterOperator.ANY)), {A, B}),
    (group(one("tags", "old", FilterOperator.CONTAINS)), {A, B}),
    ({"tags": {"is_empty": True}}, {S}),
    (group(one("dept", None, FilterOperator.IS_EMPTY)), {D}),
    (group(one("dept", "Köln", FilterOperator.TEXT_MATCH)), {A}),
    (group(one("dept", "KÖLN", FilterOperator.TEXT_MATCH_INSENSITIVE)), {A}),
    ("ok!=true", {A, B, D, S}),
    ({"file_name": {"contains": ".md"}}, MARKDOWN),
    # blank values
    ({"dept": ["", None]}, EVERY),
    ({"dept": {"in": []}}, EVERY),
    ({"dept": ["hr", ""]}, {B}),
    ("dept=", EVERY),
    # sentences
    ({"dept": "büro köln"}, "No document has dept 'büro köln'; there are Büro Köln"),
    ({"file_name": "*.md"}, "No document has file_name '*.md'; there are"),
    ({"folder": "Sub Dir"}, "No document has folder 'Sub Dir'; there are sub dir"),
    (
        {"$or": [{"unknown": "x"}, {"dept": "hr"}]},
        "No document has the field 'unknown'; the fields are cost centre, dept",
    ),
    ({"source": "a.md"}, "No document has source 'a.md'; there is files."),
    ("after 2024-05-01", "'after 2024-05-01' is not FIELD=VALUE, such as kind=report."),
    ({"newest": False}, "No document has newest false: none is superseded by a newer one."),
    ({"newest": "maybe"}, "Filter 'newest' cannot be == 'maybe': use true"),
    (group(one("type", "md", FilterOperator.GT)), "Filter 'type' has no order: use =="),
    ("{'dept': 'hr'}", 'The filter "{\'dept\': \'hr\'}" is not JSON: write {"kind": "report"}'),
    ({"dept": {"regex": "h.*"}}, "Filter 'dept' has no operator 'regex': use one of =="),
]


def made_of(folder: Path, texts: dict[str, str], facts: dict[str, dict[str, Any]]) -> Project:
    """Return a project of files with facts."""
    for name, text in texts.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    project = ProjectManager(folder / "knowledge").create("p", ProjectConfig.local())
    project.ingest([folder / "files"], file_metadata=lambda path: facts.get(path.partition("/files/")[2], {}))
    return project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of five files with facts about four of them; no test changes it."""
    return made_of(tmp_path_factory.mktemp("language"), TEXTS, FACTS)


@pytest.fixture(scope="module")
def mixed_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of five files whose facts have values of different types; no test changes it."""
    return made_of(tmp_path_factory.mktemp("mixed"), MIXED_TEXTS, MIXED_FACTS)


def named(doc_ids: Any) -> set[str]:
    return {doc_id.removeprefix("files/") for doc_id in doc_ids}


def as_json(filters: Any) -> Any:
    """Return a filter as it is sent by another program."""
    if isinstance(filters, MetadataFilters):
        assert filters.condition is not None
        return {"filters": [as_json(item) for item in filters.filters], "condition": filters.condition.value}
    if isinstance(filters, MetadataFilter):
        return {"key": filters.key, "value": filters.value, "operator": filters.operator.value}
    if isinstance(filters, list):
        return [as_json(item) for item in filters]
    return filters.to_dict() if hasattr(filters, "to_dict") else filters


def as_texts(filters: Any) -> list[str]:
    """Return a filter as conditions for a person."""
    plain = as_json(filters)
    if isinstance(plain, list) and all(isinstance(one, str) for one in plain):
        return plain
    return [plain if isinstance(plain, str) else json.dumps(plain)]


def by_python(project: Project, filters: Any) -> set[str]:
    return named(hit.source.doc_id for hit in project.retrieve(QUESTION, top_k=50, filters=filters))


def by_retriever(project: Project, filters: Any) -> set[str]:
    nodes = project.as_retriever(top_k=50, filters=filters).retrieve(QUESTION)
    return named(node.node.ref_doc_id for node in nodes)


def by_tools(project: Project, filters: Any) -> set[str]:
    tools = project.document_tools(top_k=50)
    listed = named(document.doc_id for document in tools.outline(filters=filters).documents)
    found = tools.call("search", {"query": QUESTION, "top_k": 50, "filters": as_json(filters)})
    assert named(passage.doc_id for passage in found.passages) <= listed  # type: ignore[attr-defined]
    return listed


def by_mcp(project: Project, filters: Any) -> set[str]:
    server = make_server([project])
    try:
        result = asyncio.run(server.call_tool("outline", {"filters": as_json(filters)}))
    except ToolError as error:
        raise InputError(str(error)) from error
    return named(document["doc_id"] for document in result.structured_content["documents"])  # type: ignore[index]


def by_agno(project: Project, filters: Any) -> set[str]:
    knowledge = ContextualKnowledge(project.as_retriever(min_relevance=0.0))
    return named(one.meta_data["doc_id"] for one in knowledge.search(QUESTION, max_results=50, filters=filters))


def by_command_line(project: Project, filters: Any) -> set[str]:
    options = [option for text in as_texts(filters) for option in ("--filter", text)]
    result = run("search", "p", QUESTION, "--json", "-n", 50, "--root", project.directory.parent, *options)
    if result.code:
        raise InputError(result.err.removeprefix("Error: ").strip())
    found = result.json
    return named(hit["source"]["doc_id"] for hit in (*found["results"], *found.get("folded", ())))


def by_workbench(project: Project, filters: Any) -> set[str]:
    browser = TestClient(make_app([project]), base_url="http://127.0.0.1")
    page = browser.get("/p/p/", params={"q": QUESTION, "top_k": 50, "where": as_texts(filters)}).text
    main = page[page.index("<main") :]
    if found := re.search(r"<strong>This cannot be searched.</strong>([^<]*)", main):
        raise InputError(unescape(found[1]).strip())
    return named(unquote_plus(doc_id) for doc_id in re.findall(r"<h\d><a href=\"[^\"]*document\?id=([^\"&]*)\"", main))


DOORS: dict[str, Callable[[Project, Any], set[str]]] = {
    "Python": by_python,
    "retriever": by_retriever,
    "tools": by_tools,
    "MCP": by_mcp,
    "Agno": by_agno,
    "command line": by_command_line,
    "Workbench": by_workbench,
}


def wrong_outcomes(
    project: Project, door: str, filters: list[tuple[Any, set[str] | str]]
) -> list[tuple[Any, set[str] | str, set[str] | str]]:
    """Return the filters with another outcome than the expected one: documents, or the beginning of a sentence."""
    wrong = []
    for given, expected in filters:
        try:
            outcome: set[str] | str = DOORS[door](project, given)
        except InputError as error:
            outcome = str(error)
        is_right = (
            outcome.startswith(expected)
            if isinstance(expected, str) and isinstance(outcome, str)
            else (outcome == expected)
        )
        if not is_right:
            wrong.append((given, expected, outcome))
    return wrong


@pytest.mark.parametrize("door", DOORS)
def test_every_door_selects_the_same_documents_or_says_the_same_sentence(
    project: Project, mixed_project: Project, door: str
) -> None:
    assert wrong_outcomes(project, door, FILTERS) == []
    assert wrong_outcomes(mixed_project, door, MIXED_FILTERS) == []


def test_a_restriction_keeps_blank_values_and_never_names_hidden_ones(project: Project) -> None:
    assert list(project.only({"dept": ""}).documents()) == []
    assert list(project.only({"dept": "HR"}).documents()) == []
    assert named(record.doc_id for record in project.only({"year": "2024"}).documents()) == {V1}
    assert named(record.doc_id for record in project.only({"folder": "legal"}).documents()) == LEGAL
    assert named(record.doc_id for record in project.only({"newest": True, "dept": "hr"}).documents()) == {V2}
    with pytest.raises(InputError, match="No document has dept 'legal'; there is hr"):
        project.only({"dept": "hr"}).retrieve(QUESTION, filters={"dept": "legal"})
    for blank in ("", [], {}):
        with pytest.raises(InputError, match=r"restrict access are empty|is not FIELD=VALUE"):
            project.only(blank)
