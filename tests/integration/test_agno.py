"""A project as the knowledge base of real Agno agents, whose model is the provider on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agno", reason='the adapter needs agno: pip install "llama-index-contextual[agno]"')

from agno.agent import Agent
from agno.knowledge.protocol import KnowledgeProtocol
from agno.models.openai.like import OpenAILike
from agno.team import Team

from llama_index_contextual.agno import ContextualKnowledge, ContextualTools
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.filters import to_filters
from tests.support.documents import pdf_bytes, write_texts
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
ANSWER = "The pump runs dry (manual.txt)."


def facts_of(path: str) -> dict[str, Any]:
    """What the user knows of a file: its kind, and a year that the length of its name makes up."""
    name, _, kind = Path(path).name.partition(".")
    return {"kind": kind, "year": 2020 + len(name)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of three documents, each with a kind of its own, in which no result is folded away."""
    folder = write_texts(tmp_path_factory.mktemp("agno") / "reports")
    (folder / "tariff.pdf").write_bytes(pdf_bytes())
    project = ProjectManager(folder.parent / "knowledge").create("reports", ProjectConfig.local(min_relevance=0))
    project.ingest([folder], file_metadata=facts_of)
    return project


def searching(**arguments: Any) -> Any:
    """A model that searches once and then answers."""

    def reply(request: Request) -> Reply | str:
        if any(message["role"] == "tool" for message in request.messages):
            return ANSWER
        return calling("search_knowledge_base", **{"query": QUESTION, **arguments})

    return reply


def calling(tool: str, arguments: object = None, **named: Any) -> Reply:
    """What a model answers that wants a tool to be called, with named arguments, an object, or text that is no JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(named if arguments is None else arguments)
    call = {"name": tool, "arguments": text}
    return Reply(tool_calls=[{"id": f"call_{tool}", "type": "function", "function": call}], finish_reason="tool_calls")


def model(provider: LoopbackProvider) -> OpenAILike:
    """Agno's own class for servers that speak OpenAI's protocol."""
    return OpenAILike(id="gpt-4.1-mini", base_url=provider.api_base, api_key="sk-any")


def agent(provider: LoopbackProvider, knowledge: ContextualKnowledge, **options: Any) -> Agent:
    """An agent that knows a project."""
    return Agent(model=model(provider), knowledge=knowledge, search_knowledge=True, telemetry=False, **options)


def team(provider: LoopbackProvider, members: list[Agent], **options: Any) -> Team:
    """A team of agents."""
    created = Team(members=members, model=model(provider), **options)
    created.telemetry = False
    return created


def seen_by_model(provider: LoopbackProvider) -> str:
    """What the tool gave to the model, in the last request."""
    messages = provider.chat_calls[-1].body["messages"]
    return str(next(message["content"] for message in reversed(messages) if message["role"] == "tool"))


def references(output: Any) -> list[dict[str, Any]]:
    """The passages that an agent's answer refers to."""
    return [passage for result in output.references for passage in result.references]


class TestAgents:
    def test_a_run_refers_to_the_passages_with_file_page_and_score(self, filled: Project) -> None:
        with LoopbackProvider(reply=searching()) as provider:
            output = agent(provider, ContextualKnowledge(filled, max_results=2)).run(QUESTION)
        assert output.content == ANSWER
        best, other = references(output)
        assert "TS-999 means that the pump runs dry" in best["content"]
        facts = best["meta_data"]
        assert (facts["file_name"], facts["kind"], facts["rank"]) == ("manual.txt", "txt", 1)
        assert facts["score"] > other["meta_data"]["score"]
        assert facts["node_id"] in {chunk.node_id for chunk in filled.retrieve(QUESTION)}
        assert "TS-999 means that the pump runs dry" in seen_by_model(provider)
        assert isinstance(ContextualKnowledge(filled), KnowledgeProtocol)
        assert not callable(ContextualKnowledge(filled))

    def test_a_streamed_run_refers_to_the_pages_of_a_pdf(self, filled: Project) -> None:
        with LoopbackProvider(reply=searching(query="duty on bronze fittings exports")) as provider:
            events = agent(provider, ContextualKnowledge(filled)).run(QUESTION, stream=True, yield_run_output=True)
            *events, output = events
        assert "".join(event.content or "" for event in events if event.event == "RunContent") == ANSWER
        facts = references(output)[0]["meta_data"]
        assert (facts["file_name"], facts["page_start"], facts["page_end"]) == ("tariff.pdf", 1, 2)

    async def test_eight_awaited_runs_search_at_the_same_time(self, filled: Project) -> None:
        together = threading.Barrier(8, timeout=300)
        answer = searching()

        def reply(request: Request) -> Reply | str:
            together.wait()
            return answer(request)  # type: ignore[no-any-return]

        with LoopbackProvider(reply=reply) as provider:
            knowledge = ContextualKnowledge(filled)
            outputs = await asyncio.gather(*(agent(provider, knowledge).arun(QUESTION) for _ in range(8)))
        assert [output.content for output in outputs] == [ANSWER] * 8
        for output in outputs:
            assert references(output)[0]["meta_data"]["file_name"] == "manual.txt"

    def test_filters_of_the_user_hold_in_every_index(self, filled: Project) -> None:
        with LoopbackProvider(reply=searching()) as provider:
            output = agent(provider, ContextualKnowledge(filled), knowledge_filters={"kind": "md"}).run(QUESTION)
        assert {passage["meta_data"]["kind"] for passage in references(output)} == {"md"}

    @pytest.mark.parametrize("way", ["agent", "awaited agent", "awaited team"])
    async def test_filters_that_the_model_finds_in_the_prompt_are_applied(self, filled: Project, way: str) -> None:
        def reply(request: Request) -> Reply | str:
            if any(message["role"] == "tool" for message in request.messages):
                return ANSWER
            prompt = str(request.body["messages"][0]["content"])
            ((kinds, rest),) = re.findall(r"Valid keys: kind \(([^)]+)\), (.*)", prompt)
            assert rest.startswith("year (2026, 2027), type (markdown, pdf, text), file_name")
            kind = kinds.split(", ")[-1]
            return calling("search_knowledge_base", query=QUESTION, filters=[{"key": "kind", "value": kind}])

        knowledge = ContextualKnowledge(filled)
        with LoopbackProvider(reply=reply) as provider:
            runner: Any = agent(provider, knowledge, enable_agentic_knowledge_filters=True)
            if way == "awaited team":
                options = {"knowledge": knowledge, "search_knowledge": True, "enable_agentic_knowledge_filters": True}
                runner = team(provider, [agent(provider, knowledge, name="reader")], **options)
            output = await runner.arun(QUESTION) if "awaited" in way else runner.run(QUESTION)
        assert output.content == ANSWER
        assert {passage["meta_data"]["kind"] for passage in references(output)} == {"txt"}

    def test_the_number_of_passages_follows_the_setting_of_the_project(self, filled: Project, tmp_path: Path) -> None:
        shutil.copytree(filled.directory, tmp_path / "reports")
        changed = ProjectManager(tmp_path).load("reports")
        knowledge = ContextualKnowledge(changed)
        for top_k in (2, 1):
            changed.update_config(top_k=top_k)
            with LoopbackProvider(reply=searching()) as provider:
                output = agent(provider, knowledge).run(QUESTION)
            assert len(references(output)) == top_k
        assert ContextualKnowledge(filled.as_retriever(similarity_top_k=2)).max_results == 2
        assert ContextualKnowledge(filled, max_results=3).max_results == 3

    def test_knowledge_and_tools_work_together_and_an_error_of_a_tool_reaches_the_model(self, filled: Project) -> None:
        steps = [
            calling("search_knowledge_base", query=QUESTION),
            calling("read_reports", doc_id="manual.txt", start=0, end=20),
            calling("read_reports", doc_id="manuals.txt"),
            ANSWER,
        ]

        def reply(request: Request) -> Reply | str:
            return steps[sum(message["role"] == "tool" for message in request.messages)]

        with LoopbackProvider(reply=reply) as provider:
            output = agent(provider, ContextualKnowledge(filled), tools=[ContextualTools(filled)]).run(QUESTION)
        assert output.content == ANSWER
        assert references(output)[0]["meta_data"]["file_name"] == "manual.txt"
        *_, read, failed = (m["content"] for m in provider.chat_calls[-1].body["messages"] if m["role"] == "tool")
        assert "Place: doc_id 'reports/manual.txt', characters 0 to 20 of" in read
        assert "The read failed: Project 'reports' has no document 'manuals.txt'; nearest:" in failed

    def test_an_error_of_a_search_reaches_the_model_as_a_message(self, filled: Project, project: Project) -> None:
        wrong = [{"key": "colour", "value": "blue"}]
        with LoopbackProvider(reply=searching(filters=wrong)) as provider:
            agent(provider, ContextualKnowledge(filled), enable_agentic_knowledge_filters=True).run(QUESTION)
        assert "No document has the field 'colour'; the fields are kind, year, file_name" in seen_by_model(provider)
        with LoopbackProvider(reply=searching()) as provider:
            output = agent(provider, ContextualKnowledge(project)).run(QUESTION)
        assert output.content == ANSWER
        assert "Project 'reports' has no version yet: run `project.ingest([...])` first." in seen_by_model(provider)

    def test_passages_can_be_put_into_the_question_beforehand(self, filled: Project) -> None:
        with LoopbackProvider(reply=lambda _: ANSWER) as provider:
            agent(provider, ContextualKnowledge(filled), add_knowledge_to_context=True).run(QUESTION)
        assert "TS-999 means that the pump runs dry" in str(provider.chat_calls[0].body)


SEARCH, GREP, OUTLINE, READ, KNOWLEDGE = (
    *("search_reports", "grep_reports", "outline_reports", "read_reports"),
    "search_knowledge_base",
)
CORRECT: dict[str, dict[str, Any]] = {
    SEARCH: {"query": QUESTION},
    GREP: {"pattern": "TS-999"},
    OUTLINE: {},
    READ: {"doc_id": "manual.txt"},
    KNOWLEDGE: {"query": QUESTION},
}
TOLERATED = ""
"""Instead of a hint: the call succeeds as it is."""
WRONG_CALLS: list[tuple[str, Any, str]] = [
    (SEARCH, {}, "needs the argument `query`"),
    (SEARCH, {"question": QUESTION}, TOLERATED),
    (SEARCH, {"words": QUESTION}, "needs the argument `query`"),
    (SEARCH, {"query": None}, "`query` of search cannot be None: it must be a valid string"),
    (SEARCH, {"query": ""}, "The query is empty: ask a question"),
    (SEARCH, {"query": [QUESTION]}, "it must be a valid string"),
    (SEARCH, {"query": {"text": QUESTION}}, "it must be a valid string"),
    (SEARCH, {"query": 999}, "it must be a valid string"),
    (SEARCH, {"query": QUESTION, "top_k": "3"}, TOLERATED),
    (SEARCH, {"query": QUESTION, "top_k": None}, TOLERATED),
    (SEARCH, {"query": QUESTION, "top_k": 0}, "request at least one result"),
    (SEARCH, {"query": QUESTION, "top_k": "many"}, "it must be a valid integer"),
    (SEARCH, {"query": QUESTION, "k": 3}, TOLERATED),
    (SEARCH, {"query": QUESTION, "mode": "keyword"}, "it must be 'semantic', 'lexical' or 'hybrid'"),
    (SEARCH, {"query": QUESTION, "filters": None}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": ""}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": []}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": '{"kind": "txt"}'}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": "kind=txt"}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": [{"key": "kind", "value": "txt"}]}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": {"colour": "red"}}, "the fields are kind, year"),
    (SEARCH, {"query": QUESTION, "filters": {"year": "2026"}}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": {"kind": ["TXT"]}}, "No document has kind 'TXT'; there are txt"),
    (SEARCH, {"query": QUESTION, "filters": {"year": {"gte": 2026}}}, TOLERATED),
    (SEARCH, {"query": QUESTION, "filters": {"year": {"since": 2026}}}, "use one of ==, >, <"),
    (SEARCH, {"query": QUESTION, "max_tokens": 10}, "greater than or equal to 500"),
    (SEARCH, "{not json", "json.loads"),
    (SEARCH, "null", "not a valid JSON object"),
    (GREP, {}, "needs the argument `pattern`"),
    (GREP, {"query": "TS-999"}, TOLERATED),
    (GREP, {"line": "TS-999"}, "needs the argument `pattern`"),
    (GREP, {"pattern": ["TS-999"]}, "it must be a valid string"),
    (GREP, {"pattern": "(", "regex": "true"}, "Pass regex=false"),
    (GREP, {"pattern": "TS-999", "limit": "5"}, TOLERATED),
    (GREP, {"pattern": "TS-999", "limit": 500}, "less than or equal to 50"),
    (GREP, {"pattern": "TS-999", "doc_id": "manuals.txt"}, "nearest: 'reports/manual.txt'"),
    (GREP, {"pattern": "TS-999", "filters": {"year": "2031"}}, "there are 2026, 2027"),
    (OUTLINE, {"doc_id": "nothing.md"}, "`outline_reports` lists the documents"),
    (OUTLINE, {"doc_id": ["manual.txt"]}, "it must be a valid string"),
    (OUTLINE, {"document": "manual.txt"}, TOLERATED),
    (OUTLINE, {"title": "manual.txt"}, "it takes `doc_id`"),
    (READ, {}, "needs the argument `doc_id`"),
    (READ, {"doc_id": "manuals.txt"}, "nearest: 'reports/manual.txt'"),
    (READ, {"doc_id": "manual.txt", "start": "0", "end": "184"}, TOLERATED),
    (READ, {"doc_id": "manual.txt", "start": -5}, "greater than or equal to 0"),
    (READ, {"doc_id": "manual.txt", "section": "Pumps"}, "`outline_reports` with its doc_id lists its 0 sections"),
    (READ, {"doc_id": "tariff.pdf", "pages": "99"}, "has the pages 1 to 2"),
    (READ, {"doc_id": "manual.txt", "start": 0, "section": "x"}, "pass one of them"),
    (KNOWLEDGE, {}, "query"),
    (KNOWLEDGE, {"query": None}, "query"),
    (KNOWLEDGE, {"query": ""}, "The query is empty: ask a question"),
    (KNOWLEDGE, {"query": QUESTION, "filters": "kind=txt"}, "valid list"),
    (KNOWLEDGE, {"query": QUESTION, "filters": [{"key": "colour", "value": "red"}]}, "the fields are kind, year"),
    (KNOWLEDGE, {"query": QUESTION, "filters": [{"key": "year", "value": "2031"}]}, "there are 2026, 2027"),
]


def test_a_model_that_reads_the_messages_corrects_any_wrong_call_at_once(filled: Project) -> None:
    """In each run, the model corrects its call only if the message contains what it has to know."""
    hint, tool, arguments = "", "", {}

    def reply(request: Request) -> Reply | str:
        results = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
        if not results:
            return calling(tool, arguments)
        is_wrong = hint and len(results) == 1
        if not is_wrong or hint not in results[-1]:
            return f"{len(results)} calls: {results[-1]}"
        return calling(tool, CORRECT[tool])

    with LoopbackProvider(reply=reply) as provider:
        options = {"tools": [ContextualTools(filled)], "enable_agentic_knowledge_filters": True}
        runner = agent(provider, ContextualKnowledge(filled), **options)
        for tool, arguments, hint in WRONG_CALLS:
            answer = str(runner.run(QUESTION).content)
            expected = "1 calls: " if hint == TOLERATED else "2 calls: "
            assert answer.startswith(expected), (tool, arguments, answer)
            assert "manual.txt" in answer, (tool, arguments, answer)
            assert "failed" not in answer, (tool, arguments, answer)


class TestSources:
    def test_filters_of_a_retriever_and_of_a_search_both_apply(self, filled: Project) -> None:
        markdown = to_filters({"kind": "md"})
        knowledge = ContextualKnowledge(filled.as_retriever(filters=markdown))
        assert {document.meta_data["kind"] for document in knowledge.search(QUESTION)} == {"md"}
        with pytest.raises(InputError, match="No document passes all of the filters together"):
            knowledge.search(QUESTION, filters={"kind": "txt"})

    def test_programs_get_the_error_itself_and_models_a_message(self, project: Project) -> None:
        knowledge = ContextualKnowledge(project)
        assert knowledge.get_valid_filters() == set()
        assert "Searches the 0 documents" in knowledge.build_context(enable_agentic_filters=True)
        for filters in (None, {"fund": "Alpha"}):
            with pytest.raises(NoVersionError):
                knowledge.search(QUESTION, filters=filters)
        (message,) = knowledge.retrieve(QUESTION)
        assert message.content.startswith("The search failed: Project 'reports' has no version yet")
        assert message.meta_data == {"error": True}
        with pytest.raises(InputError, match="request at least one passage"):
            ContextualKnowledge(project, max_results=0)
        with pytest.raises(InputError, match="max_results is -1"):
            knowledge.search(QUESTION, max_results=-1)
        with pytest.raises(InputError, match="The query is empty"):
            knowledge.search(" ")

    async def test_its_tools_return_json(self, filled: Project) -> None:
        knowledge = ContextualKnowledge(filled, max_results=1)
        (tool,), (awaited,) = knowledge.get_tools(), await knowledge.aget_tools()
        assert tool(QUESTION) == await awaited(QUESTION)
        (passage,) = json.loads(tool(QUESTION))
        assert passage["meta_data"]["file_name"] == "manual.txt"


def test_a_model_reads_that_nothing_was_found_and_which_word_is_missing(filled: Project) -> None:
    knowledge = ContextualKnowledge(filled, filters={"kind": "none of these"})
    assert knowledge.search("zembla") == []
    [document] = knowledge.retrieve("zembla")
    assert document.name == "nothing found"
    assert "No document mentions “zembla”." in document.content
    assert "say that the documents do not answer this" in document.content
