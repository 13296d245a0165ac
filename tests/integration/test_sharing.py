"""A restricted project: what is visible, what is refused, and that nothing depends on hidden documents.

All attempts of `tests/support/sharing.py` are made by tests/slow/test_sharing.py; here, a sample.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agno", reason='needs the extra: pip install "llama-index-contextual[agno]"')
pytest.importorskip("mcp", reason='needs the extra: pip install "llama-index-contextual[mcp]"')
pytest.importorskip("starlette", reason='needs the extra: pip install "llama-index-contextual[ui]"')

from agno.agent import Agent
from agno.run import RunContext
from llama_index.core.schema import Document
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.agno import ContextualKnowledge, ContextualTools
from llama_index_contextual.answering.prompts import NOT_FOUND
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.stores import IndexVectorStore
from tests.integration.test_agno import calling, model, seen_by_model
from tests.support.cli import run
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.sharing import HIDDEN, NAME, ONLY, SECRETS, VISIBLE, Doors, attempts, build, outcome

PROPERTIES = {
    *("name", "directory", "config", "embed_model", "storage_context", "index", "live_version", "is_restricted")
}
READING = {
    *("only", "documents", "chunks", "read", "retrieve", "retrieve_many", "as_retriever", "as_query_engine"),
    *("adocuments", "achunks", "aread", "aretrieve", "aretrieve_many", "as_chat_engine"),
    *("as_tool", "as_tools", "document_tools", "why_not", "search", "asearch", "ask", "aask", "chat", "achat"),
}
"""Methods that read the visible documents; all others change or describe the whole project."""
IS_IT = MetadataFilter(key="group", value="it")
TS_999 = "What does error TS-999 mean?"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with visible and hidden documents, which no test changes."""
    return build(tmp_path_factory.mktemp("whole"), whole=True)


@pytest.fixture(scope="module")
def visible(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that never had the hidden documents."""
    return build(tmp_path_factory.mktemp("visible"), whole=False)


def by_user(run_context: RunContext) -> Any:
    """Return the filters for a run: the user's name is the name of the group."""
    return {"group": run_context.user_id} if run_context.user_id else None


def run_of(user_id: str | None) -> RunContext:
    """Return the run of an agent for a user."""
    return RunContext(run_id="r", session_id="s", user_id=user_id)


# ---- what is visible -------------------------------------------------------------------------------------------------


def test_a_document_is_visible_if_all_its_chunks_pass(whole: Project) -> None:
    seen = {record.doc_id for record in whole.only(ONLY).documents()}
    assert seen == {f"files/{name}" for name in (*VISIBLE, "it/tariff.pdf")}
    assert "mixed" in {record.doc_id for record in whole.documents()}
    assert whole.only({"title": "Severance, mixed"}).documents()[0].doc_id == "mixed"


def test_replies_and_work_do_not_depend_on_hidden_documents(whole: Project, visible: Project) -> None:
    restricted, never = Doors(whole.only(ONLY)), Doors(visible)
    sample = [one for one in attempts(whole) if not one.asked.startswith("project ")][::11]
    assert len({one.door for one in sample}) == 7
    for attempt in sample:
        mine = outcome(attempt, restricted)
        assert mine == outcome(attempt, never), attempt
        assert mine.leaks(attempt.asked) == []


def test_the_page_of_the_project_shows_only_the_visible_documents(whole: Project) -> None:
    status, _, page = Doors(whole.only(ONLY)).get("project")
    assert status == 200
    assert "<dt>Documents</dt><dd>5</dd>" in page
    assert not any(word in page.lower() for word in (*SECRETS, "spent so far", "<h2>cost", "versions and size"))
    _, _, page = Doors(whole).get("project")
    assert all(word in page for word in ("Spent so far", "<h2>Cost", "Versions and size", "redundancies"))


def test_filters_that_nothing_passes_leave_an_empty_project(whole: Project) -> None:
    empty = whole.only({"group": "nobody"})
    assert empty.documents() == []
    assert list(empty.retrieve(TS_999)) == []
    assert [len(empty.retrieve(TS_999, mode=mode)) for mode in ("lexical", "semantic")] == [0, 0]
    tools = empty.document_tools()
    assert (tools.grep("pump").total, tools.outline().total, tools.search("pump").passages) == (0, 0, [])
    assert str(empty.as_query_engine().query(TS_999)) == NOT_FOUND
    assert len(empty.storage_context.docstore) == 0
    assert Doors(empty).get("project")[0] == Doors(empty).get("", q="pump")[0] == 200


@pytest.mark.parametrize("filters", [{"group": "\ud800"}, {"\ud800": "it"}])
def test_filters_that_are_not_valid_unicode_are_an_error(whole: Project, filters: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"surrogates not allowed.*use keys and values of valid Unicode"):
        whole.only(filters)


def test_a_restriction_can_only_be_narrowed(whole: Project) -> None:
    assert whole.only(ONLY).only({"group": "hr"}).documents() == []
    narrow = whole.only({"group": ["it", "hr"]}).only({"year": 2031}).only({"file_name": "manual.txt"})
    assert [record.doc_id for record in narrow.documents()] == ["files/hr/manual.txt"]
    assert narrow.document_tools(filters=ONLY).outline().total == 0


def test_a_new_version_is_seen_at_once_and_unchanged_parts_are_not_copied_again(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("p", build(tmp_path / "any", whole=False).config)
    restricted = project.only(ONLY)
    with pytest.raises(NoVersionError):
        restricted.retrieve("pump")
    many = [Document(id_=f"old-{n}", text=f"pump {n}", metadata={"group": "it"}) for n in range(30)]
    project.ingest(many)
    before = restricted.live_version
    assert restricted.live_version is before
    assert project.only(dict(ONLY)).live_version is before, "equal filters share a copy"
    project.ingest([Document(id_="new", text="valve", metadata={"group": "it"}), Document(id_="h", text="valve")])
    after = restricted.live_version
    assert [record.doc_id for record in after.records] == [*(one.id_ for one in many), "new"]
    assert after.parts[0] is before.parts[0]
    assert len(after.parts) == 2


def test_a_query_is_repeated_if_its_version_is_removed(tmp_path: Path) -> None:
    project = build(tmp_path, whole=True)
    indexes, seen = project.only(ONLY).state.live, []

    def query(version: Any) -> int:
        seen.append(version.name)
        if len(seen) == 1:
            project.remove("files/it/manual.txt")
            raise OSError("The file was removed.")
        return len(version.records)

    assert indexes.run(query) == len(VISIBLE)
    assert seen == ["v000001", "v000002"]

    def broken(version: Any) -> int:
        raise OSError("The disk is broken.")

    with pytest.raises(OSError, match="broken"):
        indexes.run(broken)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"group": {}},
        {"group": "it", "team": {}},
        {"group": None},
        MetadataFilters(filters=[]),
        MetadataFilters(filters=[MetadataFilters(filters=[])]),
        MetadataFilters(filters=[MetadataFilters(filters=[]), IS_IT], condition="or"),
    ],
    ids=str,
)
def test_filters_that_restrict_nothing_are_refused(whole: Project, filters: Any) -> None:
    for restrict in (
        whole.only,
        lambda filters: whole.document_tools(filters=filters),
        lambda filters: ContextualTools(whole, filters=filters),
        lambda filters: ContextualKnowledge(whole, filters=filters),
    ):
        with pytest.raises(InputError, match=r"empty|operator|needs a string or a number"):
            restrict(filters)


def test_every_method_either_reads_the_visible_documents_or_is_refused(whole: Project) -> None:
    restricted = whole.only(ONLY)
    public = {name: member for name, member in inspect.getmembers_static(Project) if not name.startswith("_")}
    assert {name for name, member in public.items() if isinstance(member, property)} == PROPERTIES
    refused = {name for name, member in public.items() if callable(member)} - READING
    assert {"ingest", "remove", "forget", "rollback", "update_config", "info", "acost", "versions", "export"} <= refused
    for name in refused:
        method = getattr(restricted, name)
        required = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
        values = ["anything" for one in required if one.kind is one.POSITIONAL_OR_KEYWORD]
        with pytest.raises(InputError, match="only reads: to change the project or to describe it as a whole"):
            asyncio.run(method(*values)) if inspect.iscoroutinefunction(method) else method(*values)
    with pytest.raises(InputError, match="only reads"), restricted.state.version_to_build_on(replace=False):
        pass


def test_the_vectors_of_a_restricted_project_cannot_be_reopened_without_the_filters(whole: Project) -> None:
    stored = whole.only(ONLY).storage_context.vector_store.to_dict()
    assert str(whole.directory) not in str(stored)
    with pytest.raises(InputError, match=r"use `project\.only"):
        IndexVectorStore.from_dict(stored)


def test_answers_are_never_taken_from_the_cache_of_another_restriction(whole: Project) -> None:
    llm: Any = whole.state.llm
    question = "Does a worn seal let the pump run dry, and is oil needed each week?"
    both = {"group": ["it"]}
    for project in (whole.only(ONLY), whole.only(both)):
        llm.history.clear()
        engine = project.as_query_engine(cache=True)
        first, second = engine.query(question), engine.query(question)
        assert (first.from_cache, second.from_cache, len(llm.history)) == (False, True, 1)


# ---- Agno ------------------------------------------------------------------------------------------------------------


def test_the_function_for_filters_is_called_for_each_use(whole: Project) -> None:
    asked: list[str | None] = []

    def filters(run_context: RunContext) -> Any:
        asked.append(run_context.user_id)
        return by_user(run_context)

    knowledge, tools = ContextualKnowledge(whole, filters=filters), ContextualTools(whole, filters=filters, suffix="")
    assert asked == []
    for user in ("it", "hr", "it"):
        assert {one.meta_data["group"] for one in knowledge.search("pump", run_context=run_of(user))} == {user}
        assert {one.meta_data["group"] for one in knowledge.retrieve("pump", user_id=user)} == {user}
        (search,) = knowledge.get_tools(run_context=run_of(user))
        assert f'"group": "{user}"' in search("pump")
        listed = str(tools.functions["outline"].entrypoint(run_context=run_of(user)))
        assert (("files/it/" in listed), ("files/hr/" in listed)) == (user == "it", user == "hr")
    assert asked == [user for user in ("it", "hr", "it") for _ in range(4)]


@pytest.mark.parametrize(
    "context", [{}, {"run_context": None}, {"run_context": "it"}, {"run_context": {"user_id": "it"}}]
)
def test_without_a_run_nothing_is_shown(whole: Project, context: dict[str, Any]) -> None:
    def never(run_context: RunContext) -> Any:
        raise AssertionError("The function needs a run.")

    with pytest.raises(InputError, match="belongs to no run"):
        ContextualKnowledge(whole, filters=never).search("pump", **context)
    (failed,) = ContextualKnowledge(whole, filters=never).retrieve("pump", **context)
    assert "belongs to no run" in failed.content
    for function in ContextualTools(whole, filters=never, suffix="").functions.values():
        assert "belongs to no run" in str(function.entrypoint(query="pump", **context))


@pytest.mark.parametrize("filters", [None, {}, {"group": {}}, MetadataFilters(filters=[])], ids=str)
def test_a_run_without_filters_is_refused(whole: Project, filters: Any) -> None:
    knowledge = ContextualKnowledge(whole, filters=lambda _: filters)
    with pytest.raises(InputError, match=r"empty|operator"):
        knowledge.search("pump", run_context=run_of("it"))
    tools = ContextualTools(whole, filters=lambda _: filters, suffix="")
    for function in tools.functions.values():
        assert "The " in (said := str(function.entrypoint(run_context=run_of("it")))), said
        assert "failed" in said
        assert "files/" not in said


def test_descriptions_name_only_what_may_be_seen(whole: Project, visible: Project) -> None:
    def described(tools: ContextualTools) -> str:
        return "\n".join(str(function.description) for function in tools.functions.values())

    fixed = described(ContextualTools(whole, filters=ONLY))
    assert fixed == described(ContextualTools(visible))
    assert "Searches the 5 documents" in fixed
    by_run = described(ContextualTools(whole, filters=by_user))
    context = ContextualKnowledge(whole, filters=by_user).build_context(enable_agentic_filters=True)
    for text in (by_run, context):
        assert not any(word in text.lower() for word in (*SECRETS, "valid keys", "manual", "tariff", "documents of 11"))
    assert ContextualKnowledge(whole, filters=by_user).get_valid_filters() == set()
    assert "Valid keys: group (it)" in ContextualKnowledge(whole, filters=ONLY).build_context(True)


def test_a_retriever_cannot_be_restricted_afterwards(whole: Project) -> None:
    with pytest.raises(InputError, match="pass the project"):
        ContextualKnowledge(whole.as_retriever(), filters=ONLY)
    knowledge = ContextualKnowledge(whole.only(ONLY).as_retriever())
    assert {one.meta_data["group"] for one in knowledge.search("pump")} == {"it"}


@pytest.mark.parametrize(
    ("user", "shown", "hidden"), [("it", "the pump runs dry", "crimson lamp"), ("hr", "crimson lamp", "V2 before")]
)
def test_an_agent_sees_the_documents_of_its_user(whole: Project, user: str, shown: str, hidden: str) -> None:
    def reply(name: str, **arguments: Any) -> Callable[[Request], Reply | str]:
        return lambda request: (
            "Done." if any(one["role"] == "tool" for one in request.messages) else calling(name, **arguments)
        )

    wanted = {"query": TS_999, "run_context": {"user_id": "hr"}, "filters": {"group": ["it", "hr"]}}
    for name, options in (
        ("search_knowledge_base", {"knowledge": ContextualKnowledge(whole, filters=by_user), "search_knowledge": True}),
        ("search", {"tools": [ContextualTools(whole, filters=by_user, suffix="")]}),
    ):
        arguments = wanted if name == "search" else {"query": TS_999}
        with LoopbackProvider(reply=reply(name, **arguments)) as provider:
            Agent(model=model(provider), telemetry=False, user_id=user, **options).run(TS_999)
            seen = seen_by_model(provider)
        assert shown in seen
        assert hidden not in seen


# ---- command line ----------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Project]:
    """The projects that the commands `serve` and `mcp` would serve."""
    projects: list[Project] = []
    monkeypatch.setattr(
        "llama_index_contextual.ui.app.serve", lambda app, **_: projects.extend(app.state.projects.values())
    )
    monkeypatch.setattr("llama_index_contextual.mcp.serve_http", lambda given, **_: projects.extend(given))
    return projects


@pytest.fixture
def root(whole: Project) -> Path:
    """The root folder of the project."""
    return whole.directory.parent


@pytest.mark.parametrize("command", [("serve", NAME), ("mcp", NAME, "--http")])
def test_the_commands_serve_only_the_documents_that_meet_the_conditions(
    served: list[Project], root: Path, command: tuple[str, ...]
) -> None:
    assert run(*command, "--root", root, "--only", "group=hr", "--only", "year>2030").code == 0
    (project,) = served
    assert {record.doc_id for record in project.documents()} == {
        f"files/{name}" for name in (*HIDDEN, "hr/severance.pdf")
    }


@pytest.mark.parametrize("command", [("serve", NAME), ("mcp", NAME, "--http")])
@pytest.mark.parametrize("condition", ["groop=hr", "hr", ""])
def test_a_condition_is_checked_at_the_start(
    served: list[Project], root: Path, command: tuple[str, ...], condition: str
) -> None:
    result = run(*command, "--root", root, "--only", condition)
    assert result.code == 1
    assert served == []
    assert "No document has the field 'groop'" in result.err or "is not FIELD=VALUE" in result.err
