"""LlamaIndex's classes: each row of the table in the guide has a test here, whose docstring is the row's first cell."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, Settings, StorageContext, load_index_from_storage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import LLM, ChatMessage, MessageRole, MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import BaseComponent, NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai import OpenAI
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissVectorStore
from pydantic import ValidationError

import llama_index_contextual as package
from llama_index_contextual import (
    AdjacentChunkMerger,
    ChunkNodeParser,
    GroundedQueryEngine,
    LLMContextualizer,
    Project,
    ProjectConfig,
    ProjectManager,
    RelevancePostprocessor,
    RetrievedChunk,
    SegmentNodeParser,
    open_storage_context,
)
from llama_index_contextual.answering.intent import INTENT_PROMPT
from llama_index_contextual.answering.judge import JUDGE_PROMPT, Judge
from llama_index_contextual.answering.prompts import ANSWER, CLARIFY, CONDENSE, NOT_FOUND, STYLES, TRANSLATE
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.versions import current_name
from llama_index_contextual.search.response import IndexScore
from tests.support.documents import pdf_bytes, write_texts
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

QUESTION = "What does error TS-999 mean?"
GOOD = "It means that “the pump runs dry” [Source 1]."
GUIDE = (ROOT / "docs" / "guide" / "llama-index.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with three documents, with a language model in its settings that has no key; it is not changed."""
    folder = write_texts(tmp_path_factory.mktemp("handles") / "reports")
    (folder / "tariff.pdf").write_bytes(pdf_bytes())
    config = ProjectConfig.local(llm="openai:gpt-4.1")
    project = ProjectManager(folder.parent / "knowledge").create("reports", config, embed_model=CountingEmbedding())
    project.ingest([folder])
    return project


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave LlamaIndex's Settings as they are at the start of a program."""
    for name in ("_llm", "_embed_model", "_callback_manager"):
        monkeypatch.setattr(Settings, name, None)


def rows() -> list[str]:
    """The first cells of the table in the guide."""
    table = GUIDE.partition("| parameter, method or class | works |\n|---|---|\n")[2].partition("\n\n")[0]
    return [re.match(r"\| (.+?) \| .+ \|$", line)[1] for line in table.splitlines()]  # type: ignore[index]


def test_every_row_of_the_table_has_a_test() -> None:
    tested = {value.__doc__ for name, value in globals().items() if name.startswith("test_")}
    assert [row for row in rows() if row not in tested] == []
    assert len(rows()) > 20


# ---- Settings --------------------------------------------------------------------------------------------------------


def test_settings_llm(reports: Project, tmp_path: Path) -> None:
    """`Settings.llm`"""
    with pytest.raises(ModelError, match=r"needs OPENAI_API_KEY.* assigned to LlamaIndex's `Settings.llm`"):
        reports.as_query_engine()
    with pytest.raises(ConfigurationError, match=r"no LLM: pass llm=, or assign Settings\.llm"):
        GroundedQueryEngine(reports.as_retriever())
    assert Settings._llm is None  # nothing has made LlamaIndex create its default model
    Settings.llm = ScriptedLLM(default=GOOD)
    assert str(reports.as_query_engine().query(QUESTION)) == GOOD
    assert str(reports.as_chat_engine().chat(QUESTION)) == GOOD
    assert str(GroundedQueryEngine(reports.as_retriever()).query(QUESTION)) == GOOD
    assert LLMContextualizer().llm is Settings.llm
    assert LLMContextualizer().model == "ScriptedLLM:scripted"
    assert LLMContextualizer(model="openai:gpt-4.1").llm is None  # a name comes first
    empty = ProjectManager(tmp_path).create("p", ProjectConfig(indexes="lexical"))
    report_error = r"needs OPENAI_API_KEY.*pass the model of LlamaIndex's Settings: llm=Settings\.llm"
    with pytest.raises(ModelError, match=report_error):
        empty.ingest([Document(text="Error TS-999 means that the pump runs dry.", id_="d")])


def test_the_settings_of_a_project_come_before_those_of_llama_index(
    reports: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    Settings.llm = ScriptedLLM()
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert isinstance(reports.state.answering_llm(), OpenAI)


def test_the_model_that_llama_index_creates_by_itself_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert isinstance(Settings.llm, OpenAI)
    assert Settings.embed_model
    assert LLMContextualizer().model == ProjectConfig().llm != "openai:gpt-3.5-turbo"
    Settings.llm = OpenAI(api_key="mine")
    assert LLMContextualizer().model == "openai:gpt-3.5-turbo"


def test_a_model_of_the_settings_without_a_name_writes_contexts_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Settings.llm = MockLLM(max_tokens=3)
    (node,) = LLMContextualizer()([TextNode(text="The pump runs dry.")])
    assert node.metadata["context"].endswith("text text text")
    (record,) = caplog.records
    assert "MockLLM has no model name: its contexts are stored under 'MockLLM:unknown'" in record.getMessage()
    assert LLMContextualizer(model_id="mock@1").model == "MockLLM:mock@1"


def test_settings_embed_model(tmp_path: Path) -> None:
    """`Settings.embed_model`"""
    Settings.embed_model = CountingEmbedding()
    project = ProjectManager(tmp_path).create("p", ProjectConfig(context="none"))
    with pytest.raises(ModelError, match=r"embed_model=Settings\.embed_model"):
        project.ingest([Document(text="x", id_="d")])
    project = ProjectManager(tmp_path).load("p", embed_model=Settings.embed_model)
    assert project.ingest([Document(text="x", id_="d")]).added == ("d",)


# ---- events ----------------------------------------------------------------------------------------------------------


class EventfulReranker(BaseNodePostprocessor):
    """Drops the best of several hits, with the event of LlamaIndex's rerankers."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with self.callback_manager.event(CBEventType.RERANKING):
            return nodes[1:] or nodes


def counts(handler: LlamaDebugHandler) -> dict[str, int]:
    """How many events of each kind have ended."""
    pairs = {kind: handler.get_event_pairs(kind) for kind in CBEventType}
    assert all(len(pair) == 2 for of_kind in pairs.values() for pair in of_kind)  # begun and ended
    return {kind.value: len(of_kind) for kind, of_kind in pairs.items() if of_kind}


def test_settings_callback_manager(tmp_path: Path) -> None:
    """`Settings.callback_manager`"""
    handler = LlamaDebugHandler(print_trace_on_end=False)
    Settings.callback_manager = CallbackManager([handler])
    config = ProjectConfig.local(context="none")
    llm = MockLLM(max_tokens=3)
    project = ProjectManager(tmp_path).create("p", config, embed_model=CountingEmbedding(), llm=llm)
    project.ingest([Document(text="Error TS-999 means that the pump runs dry.", id_="d")])
    handler.flush_event_logs()
    answer = project.as_query_engine(node_postprocessors=[EventfulReranker()]).query(QUESTION)
    seen = counts(handler)
    assert seen.pop("llm")
    assert seen == {"query": 1, "retrieve": 1, "embedding": 1, "reranking": 1, "synthesize": 1}
    retrieve = handler.get_event_pairs(CBEventType.RETRIEVE)[0]
    assert retrieve[0].payload == {"query_str": QUESTION}
    assert [hit.score > 0 for hit in retrieve[1].payload["nodes"]] == [True]  # type: ignore[index]
    (synthesize,) = handler.get_event_pairs(CBEventType.SYNTHESIZE)
    assert synthesize[1].payload["response"] == answer  # type: ignore[index]
    handler.flush_event_logs()
    project.as_retriever().retrieve("Another question about pumps")
    assert counts(handler) == {"retrieve": 1, "embedding": 1}
    handler.flush_event_logs()
    for _ in project.as_chat_engine().stream_chat(QUESTION).response_gen:
        pass
    assert {"retrieve", "synthesize"} <= set(counts(handler))


async def test_a_callback_manager_of_an_engine(reports: Project) -> None:
    """`callback_manager=`"""
    handler = LlamaDebugHandler(print_trace_on_end=False)
    llm = MockLLM(max_tokens=3)
    options: dict[str, Any] = {"llm": llm, "callback_manager": CallbackManager([handler])}
    await reports.as_query_engine(**options).aquery(QUESTION)
    await reports.as_chat_engine(**options).achat(QUESTION)
    seen = counts(handler)
    assert seen.pop("llm")
    assert seen == {"query": 1, "retrieve": 2, "synthesize": 2}


def test_an_error_ends_all_events(reports: Project) -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    llm = ScriptedLLM()
    llm.enqueue(ValueError("down"))
    engine = reports.as_query_engine(llm=llm, callback_manager=CallbackManager([handler]))
    with pytest.raises(ModelError):
        engine.query(QUESTION)
    assert {"query", "retrieve", "synthesize"} <= set(counts(handler))


def test_instrumentation(reports: Project) -> None:
    """instrumentation"""
    seen: list[str] = []

    class Recorder(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            seen.append(event.class_name())

    root, recorder = get_dispatcher(), Recorder()
    root.add_event_handler(recorder)
    try:
        reports.as_query_engine(llm=ScriptedLLM(default=GOOD)).query(QUESTION)
    finally:
        root.event_handlers.remove(recorder)
    kinds = list(dict.fromkeys(seen))
    assert kinds[0] == "QueryStartEvent"
    assert kinds[-1] == "QueryEndEvent"
    assert {"RetrievalStartEvent", "RetrievalEndEvent"} <= set(kinds)


async def test_a_retriever_sends_the_events_of_a_search_once(reports: Project) -> None:
    seen: list[str] = []

    class Recorder(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            seen.append(event.class_name())

    root, recorder, retriever = get_dispatcher(), Recorder(), reports.as_retriever()
    root.add_event_handler(recorder)
    try:
        assert retriever.retrieve(QUESTION) == await retriever.aretrieve(QUESTION)
    finally:
        root.event_handlers.remove(recorder)
    assert seen == ["RetrievalStartEvent", "RetrievalEndEvent"] * 2


# ---- prompts ---------------------------------------------------------------------------------------------------------


def test_prompts_of_a_query_engine(reports: Project) -> None:
    """`engine.get_prompts()`"""
    engine = reports.as_query_engine(llm=ScriptedLLM(), style="persona")
    texts = {name: template.get_template() for name, template in engine.get_prompts().items()}
    assert texts == {
        "system_prompt": STYLES["persona"],
        "text_qa_template": ANSWER,
        "clarify_prompt": CLARIFY,
        "translate_prompt": TRANSLATE,
    }
    full = reports.as_query_engine(llm=ScriptedLLM(), intents="llm", judge=True).get_prompts()
    assert full["intent_prompt"] == INTENT_PROMPT
    assert full["judge_prompt"] == JUDGE_PROMPT


def test_prompts_of_a_chat_engine(reports: Project) -> None:
    """`chat.get_prompts()`"""
    llm = ScriptedLLM(default=GOOD)
    chat = reports.as_chat_engine(llm=llm, mode="condense")
    prompts = chat.get_prompts()
    assert prompts["condense_prompt"].get_template() == CONDENSE
    assert set(prompts) - {"condense_prompt"} == {
        f"query_engine:{name}" for name in ("system_prompt", "text_qa_template", "clarify_prompt", "translate_prompt")
    }
    chat.update_prompts(
        {
            "condense_prompt": PromptTemplate("Shorten {question} after {history}"),
            "query_engine:system_prompt": PromptTemplate("Be a pirate, and say {not_found}"),
        }
    )
    chat.chat(QUESTION)
    chat.chat("And why?")
    assert any(prompt.startswith("Shorten And why? after user: ") for prompt in llm.history)
    assert all("Be a pirate, and say I could not find" in prompt for prompt in llm.history if "Sources:" in prompt)


def test_update_prompts_of_a_query_engine(reports: Project) -> None:
    """`engine.update_prompts()`"""
    llm = ScriptedLLM(default=GOOD)
    judge_llm = ScriptedLLM(default='{"unsupported": [], "relevant": true, "confidence": 1}')
    judge = Judge(judge_llm)
    engine = reports.as_query_engine(llm=llm, intents="llm", judge=judge)
    before = engine.get_prompts()
    engine.update_prompts(before)  # nothing changes
    assert engine.get_prompts() == before
    engine.update_prompts(
        {
            "intent_prompt": PromptTemplate("Kind of {question}? {intents}"),
            "judge_prompt": PromptTemplate("Is {answer} to {question} in {passages}?"),
            "system_prompt": PromptTemplate("Rules: cite."),
        }
    )
    answer: Any = engine.query("Orlen bench TS-999")
    assert answer.verdict["unsupported"] == []
    assert llm.history[0].startswith("Kind of Orlen bench TS-999? factual (a fact, ")
    assert llm.history[1].startswith("Rules: cite.\nSources:")
    assert judge_llm.history[0].startswith(f"Is {GOOD} to Orlen bench TS-999 in [Source 1]")
    assert judge.prompt == JUDGE_PROMPT  # other engines may use it too
    with pytest.raises(ConfigurationError, match=r"text_qa_template lacks \{context_str\}"):
        engine.update_prompts({"text_qa_template": PromptTemplate("{query_str}")})
    with pytest.raises(ConfigurationError, match="no prompt 'sytem_prompt'; did you mean 'system_prompt'"):
        engine.update_prompts({"sytem_prompt": PromptTemplate("x")})
    with pytest.raises(ConfigurationError, match="system_prompt is of type str: pass a LlamaIndex template"):
        engine.update_prompts({"system_prompt": "Rules."})  # type: ignore[dict-item]


def test_update_prompts_of_a_contextualizer() -> None:
    """`contextualizer.update_prompts()`"""
    ledger, llm = Ledger(None), ScriptedLLM()
    contextualizer = LLMContextualizer(llm=llm, ledger=ledger)
    nodes = [TextNode(id_=name, text=f"Revenue of {name} grew by 3 %.") for name in "ab"]
    contextualizer(nodes)
    assert len(llm.history) == 2
    contextualizer.update_prompts(contextualizer.get_prompts())
    contextualizer(nodes)
    assert len(llm.history) == 2  # the same prompt has the same keys
    own = PromptTemplate("{terms} {segment} Situate: {chunk}").partial_format(terms="TS: station.")
    contextualizer.update_prompts({"context_prompt": own})
    contextualizer(nodes)
    assert len(llm.history) == 4
    assert llm.history[-1].startswith("TS: station. ")
    assert contextualizer.get_prompts()["context_prompt"].kwargs == {"terms": "TS: station."}
    with pytest.raises(ConfigurationError, match=r"needs both \{segment\} and \{chunk\}"):
        contextualizer.update_prompts({"context_prompt": PromptTemplate("{chunk}")})
    with pytest.raises(ConfigurationError, match="did you mean 'context_prompt'"):
        contextualizer.update_prompts({"contex_prompt": own})
    with pytest.raises(ConfigurationError, match="ChatPromptTemplate: pass a PromptTemplate"):
        contextualizer.update_prompts({"context_prompt": ChatPromptTemplate([])})
    ledger.close()


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_a_text_qa_template_keeps_the_grounding(reports: Project) -> None:
    """`text_qa_template=`"""
    llm = ScriptedLLM(default="It means “the pump runs hot” [Source 9].")
    template = ChatPromptTemplate.from_messages(
        [("system", "You are brief."), ("user", "{context_str}\nQ: {query_str}")]
    )
    answer: Any = reports.as_query_engine(llm=llm, text_qa_template=template).query(QUESTION)
    (prompt,) = llm.history
    assert prompt.startswith(f"{STYLES['instruction'].replace('{not_found}', 'I could not find this')[:80]}")
    assert "\n\nYou are brief.\n[Source 1]" in prompt
    assert prompt.endswith(f"Q: {QUESTION}")
    assert not answer.citations.is_clean
    assert "[Source 9]" not in str(answer)
    with pytest.raises(ConfigurationError, match=r"text_qa_template lacks \{query_str\}"):
        reports.as_query_engine(llm=llm, text_qa_template=PromptTemplate("{context_str}"))


def test_a_response_mode_is_grounded_or_says_that_it_is_not(reports: Project, recwarn: pytest.WarningsRecorder) -> None:
    """`response_mode=`"""
    for mode in ("compact", ResponseMode.COMPACT):
        assert isinstance(reports.as_query_engine(llm=ScriptedLLM(), response_mode=mode), GroundedQueryEngine)
    assert [warning for warning in recwarn if "response_mode" in str(warning.message)] == []
    template = PromptTemplate("Mine: {context_str} {query_str}")
    llm = ScriptedLLM()
    with pytest.warns(UserWarning, match="not checked for citations"):
        stock = reports.as_query_engine(llm=llm, response_mode="refine", text_qa_template=template)
    assert type(stock) is RetrieverQueryEngine
    stock.query(QUESTION)
    assert llm.history[0].startswith("Mine: ")
    with pytest.raises(ConfigurationError, match="LlamaIndex's own engine, which has no `style`"):
        reports.as_query_engine(llm=llm, response_mode="refine", style="persona")


def test_streaming(reports: Project) -> None:
    """`streaming=True`"""
    stream: Any = reports.as_query_engine(llm=ScriptedLLM(default=GOOD), streaming=True).query(QUESTION)
    assert "".join(stream.response_gen) == GOOD
    assert stream.get_response().citations.is_clean


def test_node_postprocessors(reports: Project) -> None:
    """`node_postprocessors=`"""
    options: dict[str, Any] = {"llm": ScriptedLLM(default=GOOD), "similarity_top_k": 3}
    first = reports.as_query_engine(**options).query(QUESTION).source_nodes
    others = reports.as_query_engine(node_postprocessors=[EventfulReranker()], **options).query(QUESTION).source_nodes
    assert [hit.node_id for hit in others] == [hit.node_id for hit in first][1:] != []


async def test_synthesize_answers_from_given_nodes(reports: Project) -> None:
    """`engine.synthesize()`"""
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD), node_postprocessors=[EventfulReranker()])
    nodes = [NodeWithScore(node=TextNode(text=text), score=1.0) for text in ("They say the pump runs dry.", "Other.")]
    more = [NodeWithScore(node=TextNode(text="Not read."))]
    answer: Any = engine.synthesize(QueryBundle(QUESTION), nodes, additional_source_nodes=more)
    assert str(answer) == GOOD
    assert answer.citations.is_clean
    assert [hit.node.get_content() for hit in answer.source_nodes] == [
        "They say the pump runs dry.",
        "Other.",
        "Not read.",
    ]
    later: Any = await engine.asynthesize(QueryBundle(QUESTION), nodes)
    assert len(later.source_nodes) == 2
    assert not engine.synthesize(QueryBundle(QUESTION), []).found  # type: ignore[union-attr]


# ---- conversations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Memory, ChatMemoryBuffer])
def test_a_memory_holds_the_conversation(reports: Project, kind: Any) -> None:
    """`memory=`"""
    memory = kind.from_defaults(token_limit=2000)
    llm = ScriptedLLM(default=GOOD)
    chat = reports.as_chat_engine(llm=llm, memory=memory)
    chat.chat(QUESTION)
    assert [message.role.value for message in memory.get_all()] == ["user", "assistant"]
    assert "".join(chat.stream_chat("And what then?").response_gen) == GOOD
    assert len(chat.chat_history) == len(memory.get_all()) == 4

    async def more() -> None:
        await chat.achat("And after that?")
        stream = await chat.astream_chat("And finally?")
        assert "".join([piece async for piece in stream.async_response_gen()]) == GOOD
        assert len(await memory.aget_all()) == 8

    asyncio.run(more())
    assert GOOD.replace(" [Source 1]", "") in llm.history[1]  # the prompt has the first exchange
    chat.chat("Anew", chat_history=[ChatMessage(role="user", content="Before")])
    assert [message.content for message in memory.get_all()] == ["Before", "Anew", GOOD]
    chat.reset()
    assert memory.get_all() == chat.chat_history == []


def test_the_memory_decides_what_the_prompt_contains(reports: Project) -> None:
    class Notes(ChatMemoryBuffer):
        def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
            return [ChatMessage(role=MessageRole.SYSTEM, content=f"Facts about {input}"), *self.get_all()[-1:]]

        async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
            return self.get(input)

    llm = ScriptedLLM(default=GOOD)
    chat = reports.as_chat_engine(llm=llm, memory=Notes.from_defaults(token_limit=2000), history_tokens=0)
    chat.chat(QUESTION)
    chat.chat("And why?")
    system, *_ = llm.history[1].partition(GOOD.replace(" [Source 1]", ""))
    assert system.endswith("\n\nFacts about And why?\n")  # one system message: the rules, then the memory's


def test_a_chat_store(reports: Project) -> None:
    """`chat_store=`"""
    store = SimpleChatStore()
    reports.as_chat_engine(llm=ScriptedLLM(default=GOOD), chat_store=store, chat_store_key="me").chat(QUESTION)
    assert [message.content for message in store.get_messages("me")] == [QUESTION, GOOD]


def test_chat_modes(reports: Project) -> None:
    """`chat_mode=`"""
    modes = {"best": "blend", "context": "simple", "condense_question": "condense", "condense_plus_context": "condense"}
    for chat_mode, mode in modes.items():
        assert reports.as_chat_engine(llm=MockLLM(), chat_mode=chat_mode).mode == mode
    assert reports.as_chat_engine(llm=MockLLM(), chat_mode=ChatMode.CONTEXT).mode == "simple"
    with pytest.raises(ConfigurationError, match="Chat mode 'react' is unknown"):
        reports.as_chat_engine(llm=MockLLM(), chat_mode="react")


def test_a_system_prompt_replaces_the_rules_and_a_style_is_added_to_them(reports: Project) -> None:
    """`system_prompt=`"""
    for make in (reports.as_query_engine, reports.as_chat_engine):
        llm = ScriptedLLM(default=GOOD)
        for options in ({"system_prompt": "Talk to operators, or say: {not_found}"}, {"style": "Talk to operators."}):
            engine: Any = make(llm=llm, **options)
            (engine.chat if hasattr(engine, "chat") else engine.query)(QUESTION)
        replaced, added = llm.history
        assert replaced.startswith(f"Talk to operators, or say: {NOT_FOUND}\nSources:")
        assert added.startswith("Answer the question completely")
        assert "as [Source N]" in added
        assert f"write exactly: {NOT_FOUND}\n\nTalk to operators.\nSources:" in added


# ---- agents, tools, workflows ----------------------------------------------------------------------------------------


def test_a_query_engine_is_a_tool(reports: Project) -> None:
    """`QueryEngineTool`"""
    tool = QueryEngineTool.from_defaults(reports.as_query_engine(llm=ScriptedLLM(default=GOOD)), name="manuals")
    assert str(tool(QUESTION)) == GOOD


async def test_a_function_agent_searches(reports: Project) -> None:
    """`FunctionAgent`"""

    def reply(request: Any) -> Reply | str:
        if any(message["role"] == "tool" for message in request.messages):
            return GOOD
        call = {"name": "search_reports", "arguments": '{"query": "TS-999"}'}
        return Reply(tool_calls=[{"id": "1", "type": "function", "function": call}], finish_reason="tool_calls")

    with LoopbackProvider(reply=reply) as provider:
        llm = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="any", max_retries=0, reuse_client=False)
        output = await FunctionAgent(tools=[reports.as_tool()], llm=llm).run(QUESTION)
    assert str(output) == GOOD
    assert output.tool_calls[0].tool_output.raw_output[0].source.file_name == "manual.txt"


async def test_a_workflow_awaits_searches_and_answers(reports: Project) -> None:
    """`Workflow`"""
    llm: LLM = ScriptedLLM(default=GOOD)

    class Answering(Workflow):
        @step
        async def answer(self, event: StartEvent) -> StopEvent:
            response = await reports.aretrieve(event.question)
            engine, chat = reports.as_query_engine(llm=llm), reports.as_chat_engine(llm=llm)
            from_nodes = await engine.asynthesize(QueryBundle(event.question), response.to_nodes())
            answers = [from_nodes, await engine.aquery(event.question), await chat.achat(event.question)]
            return StopEvent(result=[str(answer) for answer in answers])

    assert await Answering(timeout=None).run(question=QUESTION) == [GOOD] * 3


def test_a_cut_off_by_similarity(reports: Project, caplog: pytest.LogCaptureFixture) -> None:
    """`SimilarityPostprocessor`"""
    hits = reports.as_retriever().retrieve(QUESTION)
    relevances = [hit.relevance for hit in hits]  # type: ignore[attr-defined]
    assert hits[0].get_score() not in relevances
    scored = RelevancePostprocessor().postprocess_nodes(hits)
    assert [hit.score for hit in scored] == relevances
    cutoff = sum(relevances[:2]) / 2
    kept = SimilarityPostprocessor(similarity_cutoff=cutoff).postprocess_nodes(scored)
    assert [hit.node_id for hit in kept] == [hits[0].node_id]
    own = RelevancePostprocessor(relevance_cutoff=cutoff)
    assert own.postprocess_nodes(hits) == kept
    engine = reports.as_query_engine(llm=ScriptedLLM(default=GOOD), node_postprocessors=[own])
    assert len(engine.query(QUESTION).source_nodes) == 1
    without = [NodeWithScore(node=TextNode(text="x"), score=6.4)]
    assert own.postprocess_nodes(without) == without
    assert "estimated no relevance" in caplog.text


def test_a_retriever_among_others(reports: Project) -> None:
    """`QueryFusionRetriever`"""
    retrievers: list[Any] = [reports.as_retriever(mode="lexical"), reports.as_retriever(mode="semantic")]
    fused = QueryFusionRetriever(retrievers, llm=MockLLM(), num_queries=1, use_async=False, similarity_top_k=2)
    assert fused.retrieve(QUESTION)[0].node.metadata["file_name"] == "manual.txt"


# ---- ingestion and stores --------------------------------------------------------------------------------------------


def test_a_pipeline_pays_only_for_new_chunks(tmp_path: Path) -> None:
    """`IngestionPipeline`"""
    path = tmp_path / "cache" / "contexts.sqlite"

    def run(*names: str) -> int:
        llm = ScriptedLLM()
        contextualizer = LLMContextualizer(llm=llm, ledger=str(path))
        pipeline = IngestionPipeline(transformations=[SegmentNodeParser(), ChunkNodeParser(), contextualizer])
        documents = [Document(id_=name, text=f"Revenue of {name} grew by 3 %.") for name in names]
        nodes = pipeline.run(documents=documents)
        assert all(node.metadata["context_source"] == "llm" for node in nodes)
        return len(llm.history)

    assert run("a", "b") == 2
    assert run("a", "b", "c") == 1
    assert run("c", "b", "a") == 0
    ledger = Ledger(path, read_only=True)
    assert ledger.info().contexts == 3
    ledger.close()
    contextualizer = LLMContextualizer(model="openai:gpt-4.1", ledger=path)
    assert LLMContextualizer.from_dict(contextualizer.to_dict()).ledger == path
    assert "ledger" not in LLMContextualizer(model="openai:gpt-4.1").to_dict()  # the pipeline's cache keeps its keys


def samples(tmp_path: Path) -> dict[str, BaseComponent]:
    """An instance of every exported component, with values that differ from the defaults."""
    node = TextNode(id_="a", text="x", metadata={"context": "y"}, excluded_llm_metadata_keys=["context"])
    return {
        "AdjacentChunkMerger": AdjacentChunkMerger(max_tokens=500),
        "ChunkNodeParser": ChunkNodeParser(chunk_size=99, chunk_overlap=9),
        "ContextWindowPacker": package.ContextWindowPacker(max_tokens=99, compress=True),
        "LLMContextualizer": LLMContextualizer(
            llm=ScriptedLLM(), prompt="{t} {segment} {chunk}", variables={"t": "é"}, ledger=tmp_path / "l.sqlite"
        ),
        "RelevancePostprocessor": RelevancePostprocessor(relevance_cutoff=0.2),
        "RetrievedChunk": RetrievedChunk(
            node=node, score=1.5, rank=2, relevance=0.3, lexical=IndexScore(2.5, 1, ("pump",))
        ),
        "SegmentNodeParser": SegmentNodeParser(segment_size=999, segment_overlap=9),
        "StructuralContextualizer": package.StructuralContextualizer(max_tokens=50),
        "VoyageContextualEmbedding": VoyageContextualEmbedding(api_key="secret", dimensions=512),
        "WordLlamaEmbedding": package.WordLlamaEmbedding(embed_batch_size=7),
    }


def components() -> list[str]:
    """The names of all exported components that can be created."""
    public = {name: getattr(package, name) for name in package.__all__} | {
        "VoyageContextualEmbedding": VoyageContextualEmbedding
    }
    classes = {name: one for name, one in public.items() if inspect.isclass(one) and issubclass(one, BaseComponent)}
    return [name for name, one in classes.items() if not inspect.isabstract(one)]


@pytest.mark.parametrize("name", components())
def test_every_component_can_be_restored(tmp_path: Path, name: str) -> None:
    """`to_dict()`"""
    if name == "WordLlamaEmbedding":
        pytest.importorskip("wordllama", reason="needs the extra local")
    original = samples(tmp_path)[name]
    restored = type(original).from_dict(original.to_dict())
    assert type(restored) is type(original)
    assert restored.to_dict() == original.to_dict()
    assert "secret" not in original.to_json()
    again = type(original).from_json(original.to_json())
    assert again.to_dict() == original.to_dict()
    if isinstance(restored, RetrievedChunk) and isinstance(original, RetrievedChunk):
        assert restored == original


@pytest.mark.parametrize(
    "name", [name for name in components() if "Embedding" not in name and name != "RetrievedChunk"]
)
def test_a_misspelt_option_of_a_component_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="chunk_sizes\n  Extra inputs are not permitted"):
        getattr(package, name)(chunk_sizes=100)


@pytest.fixture
def stock(reports: Project, tmp_path: Path) -> Path:
    """The directory to which the live version was persisted, twice."""
    target = tmp_path / "stock"
    for _ in range(2):
        reports.storage_context.persist(target)
    assert [path.name for path in tmp_path.iterdir()] == ["stock"]  # nothing is left beside it
    return target


def test_persist_leaves_nothing_out(reports: Project, stock: Path, tmp_path: Path) -> None:
    """`storage_context.persist()`"""
    context = StorageContext.from_defaults(
        persist_dir=str(stock), vector_store=FaissVectorStore.from_persist_dir(str(stock))
    )
    assert context.docstore.docs == reports.storage_context.docstore.docs
    index = load_index_from_storage(context, embed_model=reports.embed_model)
    expected = [hit.node.node_id for hit in reports.index.as_retriever(similarity_top_k=2).retrieve(QUESTION)]
    assert [hit.node_id for hit in index.as_retriever(similarity_top_k=2).retrieve(QUESTION)] == expected
    lexical = BM25Retriever.from_persist_dir(str(stock / "bm25"))
    assert "TS-999" in lexical.retrieve("pump runs dry")[0].node.get_content()
    reports.storage_context.persist(str(tmp_path / "named"), docstore_fname="nodes.json")
    assert (tmp_path / "named" / "nodes.json").is_file()


def test_persist_writes_to_other_file_systems(reports: Project) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    reports.storage_context.persist("/persisted", fs=memory)
    try:
        assert {path.rpartition("/")[2] for path in memory.ls("/persisted", detail=False)} >= {
            "docstore.json",
            "default__vector_store.json",
            "bm25",
        }
    finally:
        memory.rm("/persisted", recursive=True)


def test_a_version_as_an_index(reports: Project) -> None:
    """`load_index_from_storage`"""
    version = reports.directory / "versions" / str(current_name(reports.directory))
    index: Any = load_index_from_storage(open_storage_context(version), embed_model=CountingEmbedding())
    found = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)[0].node_id
    assert found == reports.index.as_retriever(similarity_top_k=1).retrieve(QUESTION)[0].node_id


# ---- keywords --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "slip", "meant"),
    [
        ("as_query_engine", "stlye", "style"),
        ("as_query_engine", "similarity_topk", "similarity_top_k"),
        ("as_chat_engine", "memmory", "memory"),
        ("as_retriever", "filter", "filters"),
        ("retrieve", "topk", "top_k"),
        ("as_tool", "descripton", "description"),
        ("ingest", "max_costs", "max_cost"),
        ("sync_folders", "max_costs", "max_cost"),
    ],
)
def test_a_mistyped_keyword_is_told_the_right_one(reports: Project, method: str, slip: str, meant: str) -> None:
    expected = rf"Project\.{method}\(\) got an unexpected keyword argument '{slip}'; did you mean '{meant}'\?"
    with pytest.raises(TypeError, match=expected):
        getattr(reports, method)(**{slip: 1})
    assert meant in inspect.signature(getattr(reports, method)).parameters
