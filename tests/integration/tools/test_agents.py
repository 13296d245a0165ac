"""Real agents with the four tools answer questions that one search does not; only their model is scripted.

The model knows the forms of questions and of tool results, but no document: every answer is taken from the tools.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

NAMES = re.findall(
    r"\w+",
    "Arnwick Birkhope Calder Dunmere Eskdale Fellbeck Garside Harrop Ingleby Jarrow Kirkwold Lanshaw Marrick Netherby"
    " Orton Penhale Quarrybank Rosthwaite Selby Thorne Ulpha Vennel Wharram Yarm",
)
STATIONS = [f"{name}{side}" for name in NAMES for side in ("", " North", " South")]
ANIMALS = re.findall(
    r"\w+",
    "heron otter lynx stoat osprey viper marten crane grebe weasel plover curlew adder beaver ferret polecat merlin"
    " kestrel dipper bittern hobby shrew vole hare",
)
EVENTS = ("blocked strainer", "false alarm", "dosing stopped", "fuse exchanged", "aerial bent")
SEED = 17


def call_of(tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return tool, arguments


def records() -> tuple[dict[str, str], dict[str, str]]:
    """Return the record of each station as Markdown, and questions with their answers."""
    rng = random.Random(SEED)
    pressures = [f"{number / 100:.2f} bar" for number in rng.sample(range(1_100, 9_900), len(STATIONS))]
    seen = dict(zip(rng.sample(range(len(STATIONS)), len(ANIMALS)), ANIMALS, strict=True))
    counts = dict.fromkeys(EVENTS, 0)
    texts = {}
    for number, name in enumerate(STATIONS):
        log = []
        for day in range(1, 26):
            event = rng.choice((*EVENTS, "nothing to report", "pump changed over", "tank cleaned"))
            log.append(
                f"Day {day}: {event}; the crew checked which shut-off pressure applies, and signed with a badge."
            )
            counts[event] = counts.get(event, 0) + (event in EVENTS)
        if number in seen:
            log[rng.randrange(len(log))] += f" A {seen[number]} was seen at the fence."
        equipment = "Two pumps, one dosing skid and one outstation. " * 20
        limits = f"The shut-off pressure is {pressures[number]}. " + "Limits are checked every year. " * 20
        parts = [f"# Station record: {name}", "## Equipment", equipment, "## Limits", limits, "## Log", *log]
        texts[f"{number:02}-{name.lower().replace(' ', '-')}.md"] = "\n\n".join(parts)
    questions = {
        f"Which shut-off pressure applies at the station where a {animal} was seen?": pressures[number]
        for number, animal in seen.items()
    }
    questions |= {f"How often do the logs of all stations record: {event}?": str(counts[event]) for event in EVENTS}
    return texts, questions


def next_step(question: str, results: list[str]) -> tuple[str, dict[str, Any]] | str:
    """Return the call that a sensible agent makes after these results, or its answer."""
    last = results[-1] if results else ""
    if event := re.search(r"record: (.+)\?", question):
        return found(r"occurs (\d+) times?", last) if results else call_of("grep", pattern=event[1], limit=1)
    animal = found(r"where an? (\w+) was seen", question)
    steps: list[Callable[[], tuple[str, dict[str, Any]] | str]] = [
        lambda: call_of("grep", pattern=animal),
        lambda: call_of("outline", doc_id=found(r"doc_id '([^']+)'", last)),
        lambda: call_of("read", doc_id=found(r"- doc_id '([^']+)'", last), section=found(r"(#\d+) Limits", last)),
        lambda: found(r"shut-off pressure is (\d+\.\d\d bar)", last),
    ]
    return steps[len(results)]()


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "not found"


def scripted(request: Request) -> Reply | str:
    """The model: its next step depends on the question and on the results of its calls."""
    messages = request.body["messages"]
    question = next(str(message["content"]) for message in messages if message["role"] == "user")
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    step = next_step(question, results)
    if isinstance(step, str):
        return f"ANSWER {step}"
    tool, arguments = step
    names = [one["function"]["name"] for one in request.body["tools"]]
    (name,) = [one for one in names if one.partition("_")[0] == tool]
    call = {"name": name, "arguments": json.dumps(arguments)}
    return Reply(
        tool_calls=[{"id": f"call_{len(results)}", "type": "function", "function": call}], finish_reason="tool_calls"
    )


TEXTS, CANDIDATES = records()


@pytest.fixture(scope="module")
def stations(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the records of 72 stations."""
    folder = tmp_path_factory.mktemp("stations")
    (folder / "records").mkdir()
    for name, text in TEXTS.items():
        (folder / "records" / name).write_text(text, encoding="utf-8")
    project = ProjectManager(folder / "knowledge").create(
        "stations", ProjectConfig.local(chunk_size=200, chunk_overlap=0)
    )
    project.ingest([folder / "records"])
    return project


@pytest.fixture(scope="module")
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider(reply=scripted) as running:
        yield running


def openai(provider: LoopbackProvider) -> OpenAI:
    return OpenAI(model="gpt-4.1-mini", api_base=provider.api_base, api_key="sk-any", reuse_client=False)


@pytest.fixture(scope="module")
def questions(stations: Project) -> dict[str, str]:
    """The questions whose answer is in none of the passages that one search of the project returns."""

    def is_found(question: str, answer: str) -> bool:
        texts = " ".join(chunk.text for chunk in stations.retrieve(question))
        return re.search(rf"(?<![\w.]){re.escape(answer)}\.", texts) is not None

    hard = {question: answer for question, answer in CANDIDATES.items() if not is_found(question, answer)}
    chosen = [[one for one in hard if kind in one][:number] for kind, number in (("was seen", 8), ("record:", 5))]
    return {question: hard[question] for some in chosen for question in some}


async def test_a_function_agent_with_the_tools_answers_what_one_search_does_not(
    stations: Project, provider: LoopbackProvider, questions: dict[str, str]
) -> None:
    assert len(questions) == 13
    for question, answer in list(questions.items())[::2]:
        agent = FunctionAgent(tools=list(stations.as_tools()), llm=openai(provider))
        output = await agent.run(question)
        assert str(output) == f"ANSWER {answer}", question
        assert output.tool_calls
        assert not any(call.tool_output.is_error for call in output.tool_calls)


async def test_an_awaited_agent_of_agno_with_the_toolkit_answers(
    stations: Project, provider: LoopbackProvider, questions: dict[str, str]
) -> None:
    agno = pytest.importorskip(
        "agno.agent", reason='the toolkit needs agno: pip install "llama-index-contextual[agno]"'
    )
    from agno.models.openai.like import OpenAILike

    from llama_index_contextual.agno import ContextualTools

    model = OpenAILike(id="gpt-4.1-mini", base_url=provider.api_base, api_key="sk-any")
    question, answer = next(iter(questions.items()))
    output = await agno.Agent(model=model, tools=[ContextualTools(stations)], telemetry=False).arun(question)
    assert output.content == f"ANSWER {answer}"
    assert "Look before you read" in str(provider.chat_calls[-1].body["messages"][0]["content"])


def test_an_error_reaches_the_model_as_a_message(stations: Project) -> None:
    tools = {tool.metadata.name: tool for tool in stations.as_tools(suffix="")}
    assert sorted(map(str, tools)) == ["grep", "outline", "read", "search"]
    assert str(tools["read"].call(doc_id="98-yarm.md")).startswith(
        "The read failed: Project 'stations' has no document"
    )
    assert str(asyncio.run(tools["grep"].acall(pattern=""))) == (
        "The grep failed: The pattern is empty: pass the text to find."
    )
    result = tools["grep"].call(pattern="otter")
    assert result.raw_output.total == 1
