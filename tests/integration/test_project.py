"""`Project`: results, errors and files."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.indices.loading import load_index_from_storage
from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document, QueryBundle
from llama_index.embeddings.openai import OpenAIEmbedding

from llama_index_contextual import models
from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    InputError,
    ModelError,
    NoVersionError,
    PathNotFoundError,
    ProjectError,
    ReadOnlyVersionError,
)
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers import HybridRetriever, LexicalRetriever, SemanticRetriever
from tests.support import documents
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.server import LoopbackProvider

SECRET = "sk-secret-7f3a9c"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that was ingested; tests only read it."""
    root = tmp_path_factory.mktemp("shared")
    project = ProjectManager(root / "knowledge").create("reports", ProjectConfig.local())
    project.ingest([documents.write_texts(root / "reports")])
    return project


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    """A provider on the loopback interface, where the OpenAI classes find it by the environment."""
    with LoopbackProvider(require_key=SECRET) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        yield provider


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# ---- before the first version ---------------------------------------------------------------------------------------


def test_retrieving_before_ingesting_names_the_method_to_call(project: Project) -> None:
    with pytest.raises(NoVersionError, match=r"Project 'reports' has no version yet: run `project.ingest\(\[...\]\)`"):
        project.retrieve("anything")


def test_inputs_are_a_single_item_or_any_iterable(project: Project, tiny_folder: Path) -> None:
    files = sorted(tiny_folder.glob("*.txt"))
    assert files
    assert project.ingest(path for path in files).added == tuple(path.name for path in files)
    assert project.ingest(set(files)).unchanged == project.ingest(tiny_folder.glob("*.txt")).unchanged
    assert len(project.documents()) == len(files)
    with pytest.raises(InputError, match="ingest accepts only paths"):
        project.ingest(7)  # type: ignore[arg-type]


def test_reading_an_empty_project_writes_nothing(project: Project) -> None:
    before = digests(project.directory)
    assert project.documents() == ()
    assert project.versions() == []
    assert repr(project) == "Project('reports', version=None)"
    info = project.info()
    assert (info.name, info.version, info.documents, info.chunks, info.bytes) == ("reports", None, 0, 0, 0)
    assert (info.ledger.contexts, info.ledger.embeddings) == (0, 0)
    assert digests(project.directory) == before


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk_size": 100, "chunk_overlap": 100}, r"chunk_overlap \(100\) must be smaller than chunk_size \(100\)"),
        (
            {"chunk_sise": 800},
            "Unknown setting 'chunk_sise'. Did you mean 'chunk_size'[?]",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_no_change(project: Project, settings: dict[str, Any], message: str) -> None:
    before = digests(project.directory)
    with pytest.raises(ConfigurationError, match=message):
        ProjectConfig(**settings)
    with pytest.raises(ConfigurationError, match=message):
        project.update_config(**settings)
    assert project.config == ProjectConfig.local()
    assert digests(project.directory) == before


def test_changed_settings_are_kept_and_those_that_need_a_rebuild_are_named(
    project: Project, manager: ProjectManager, text_folder: Path
) -> None:
    project.ingest([text_folder])
    assert project.update_config(top_k=1) == []
    assert len(project.retrieve("error TS-999")) == 1
    assert project.update_config(chunk_size=16, chunk_overlap=0) == ["chunk_size", "chunk_overlap"]
    assert (
        manager.load("reports").config == project.config == ProjectConfig.local(top_k=1, chunk_size=16, chunk_overlap=0)
    )
    chunks = project.info().chunks
    assert project.rebuild().rebuilt == ("reports/manual.txt", "reports/quarter.md")
    assert project.info().chunks > chunks


def test_settings_are_pending_until_the_live_version_has_them(project: Project, text_folder: Path) -> None:
    assert project.update_config(chunk_size=64, chunk_overlap=8) == ["chunk_size", "chunk_overlap"]
    project.ingest([text_folder])
    assert project.update_config(chunk_size=16, chunk_overlap=0) == ["chunk_size", "chunk_overlap"]
    assert project.update_config(top_k=1) == ["chunk_size", "chunk_overlap"]
    assert project.update_config(chunk_size=64, chunk_overlap=8) == []


# ---- models --------------------------------------------------------------------------------------------------------

BOTH_WAYS_OUT = (
    r"needs OPENAI_API_KEY, which is not set. Either set it, or work without a key: `ProjectConfig.local\(\)`"
)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (ProjectConfig(), "openai:text-embedding-3-small"),
        (ProjectConfig.local(context="llm"), DEFAULT_LLM),
        (ProjectConfig(indexes="lexical"), DEFAULT_LLM),
    ],
    ids=["both", "llm only", "without faiss"],
)
def test_without_a_key_ingesting_names_both_solutions_and_publishes_nothing(
    manager: ProjectManager, text_folder: Path, config: ProjectConfig, model: str
) -> None:
    project = manager.create("a", config)
    with pytest.raises(ModelError, match=f"'{model}' {BOTH_WAYS_OUT}"):
        project.ingest([text_folder])
    assert project.versions() == []
    assert project.info().ledger.contexts == 0
    assert list((project.directory / "versions").glob("*")) == []


@pytest.mark.parametrize("setting", ["embed_model", "llm"])
@pytest.mark.parametrize("name", ["os:system", "openai", "openai:", "builtins:eval", ""])
def test_an_unknown_embedding_model_is_named_with_the_known_ones(
    manager: ProjectManager, text_folder: Path, setting: str, name: str
) -> None:
    message = rf"'{setting}' is '{name}', which is not the name of an? [a-zA-Z ]+: use one of openai:"
    with pytest.raises(ModelError, match=message):
        manager.create("a", ProjectConfig.local(**{setting: name}))
    assert manager.list() == []
    project = manager.create("a", ProjectConfig.local(context="llm"))
    with pytest.raises(ModelError, match=message):
        project.update_config(**{setting: name})
    project.state.config = project.config.changed(**{setting: name})  # as from the environment, or an older release
    with pytest.raises(ModelError, match=message):
        project.ingest([text_folder])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("embed_model", "'openai:text-embedding-3-small': change the setting 'embed_model'"),
        ("llm", "'openai:gpt-4.1': change the setting 'llm'"),
    ],
)
def test_a_model_that_the_provider_does_not_know_is_named_with_what_to_do(
    manager: ProjectManager, openai: LoopbackProvider, text_folder: Path, setting: str, message: str
) -> None:
    models = {"embed_model": "openai:text-embedding-3-small", "llm": "openai:gpt-4.1"}
    openai.models = [name.partition(":")[2] for key, name in models.items() if key != setting]
    project = manager.create("a", ProjectConfig(**models))
    with pytest.raises(ModelError, match=f"does not offer the model {message}"):
        project.ingest([text_folder])
    assert project.versions() == []


def test_a_different_embedding_model_than_the_indexed_one_is_refused(
    manager: ProjectManager, project: Project, text_folder: Path
) -> None:
    project.ingest([text_folder])
    other = manager.load("reports", embed_model=CountingEmbedding())
    expected = "built with the embedding model 'local', the project is loaded with 'CountingEmbedding:counting'"
    with pytest.raises(ConfigurationError, match=expected):
        other.retrieve("error TS-999")
    with pytest.raises(ConfigurationError, match=expected):
        other.ingest([text_folder])
    assert other.retrieve("error TS-999", mode="lexical")[0].source.file_name == "manual.txt"


def test_a_change_of_the_embedding_model_affects_the_search_with_the_next_version_only(
    project: Project, text_folder: Path
) -> None:
    project.ingest([text_folder])
    before = [chunk.node_id for chunk in project.retrieve("error TS-999")]
    assert project.update_config(embed_model="openai:text-embedding-3-small") == ["embed_model"]
    for mode in ("hybrid", "semantic"):
        assert project.retrieve("error TS-999", mode=mode).mode_used == mode
    assert [chunk.node_id for chunk in project.retrieve("error TS-999")] == before
    assert project.as_chat_engine(llm=MockLLM()).chat("error TS-999").source_nodes
    with pytest.raises(ModelError, match="needs OPENAI_API_KEY"):
        project.rebuild()


# ---- retrieving ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
def test_a_top_k_beyond_the_corpus_returns_all_chunks_every_time(reports: Project, mode: Any) -> None:
    for top_k in (10_000, 1, 10_000):
        response = reports.retrieve("error TS-999 revenue", mode=mode, top_k=top_k)
        assert len(response) == min(top_k, reports.info().chunks)
        assert [chunk.rank for chunk in response] == list(range(1, len(response) + 1))


def test_an_existing_retriever_follows_the_live_version(project: Project, text_folder: Path) -> None:
    retriever = project.as_retriever(mode="lexical", similarity_top_k=1)
    project.ingest([text_folder / "manual.txt"])
    assert retriever.retrieve("shipyards") == []
    project.ingest([text_folder / "quarter.md"])
    (hit,) = retriever.retrieve("shipyards")
    assert hit.node.metadata["file_name"] == "quarter.md"
    project.rollback()
    assert retriever.retrieve("shipyards") == []


# ---- in LlamaIndex -------------------------------------------------------------------------------------------------


def test_its_storage_context_loads_as_a_stock_index_and_does_not_change(reports: Project) -> None:
    before = digests(reports.directory)
    index = load_index_from_storage(reports.storage_context, embed_model=reports.embed_model)
    assert "TS-999" in str(index.as_query_engine(llm=MockLLM()).query("What does error TS-999 mean?"))
    assert "TS-999" in str(reports.index.as_query_engine(llm=MockLLM()).query("What does error TS-999 mean?"))
    with pytest.raises(ReadOnlyVersionError):
        reports.index.delete_ref_doc("reports/manual.txt", delete_from_docstore=True)
    assert digests(reports.directory) == before


async def test_the_synchronous_methods_work_inside_a_running_loop(project: Project, text_folder: Path) -> None:
    assert project.ingest([text_folder]).chunks == 2
    assert project.retrieve("error TS-999")[0].source.file_name == "manual.txt"
    assert len(project.remove("reports/quarter.md").removed) == 1
    assert (await project.aretrieve("error TS-999"))[0].source.file_name == "manual.txt"


def twins() -> list[tuple[str, str]]:
    """Return the names of every method of a project that blocks and of its async twin."""
    names = [name for name, member in inspect.getmembers(Project, inspect.iscoroutinefunction) if name[0] != "_"]
    return [(name.removeprefix("a"), name) for name in names]


def test_slow_methods_have_an_async_twin_with_the_same_signature_and_documentation() -> None:
    assert [name for name, _ in twins()] == [
        *("ask", "chat"),
        *("chunks", "cost", "documents", "estimate", "export", "forget", "info", "ingest", "read", "rebuild", "remove"),
        *(
            "retrieve",
            "retrieve_many",
            "retry_failed",
            "rollback",
            "search",
            "sync_documents",
            "sync_folders",
            "update_config",
            "verify",
            "versions",
        ),
    ]
    assert inspect.signature(Project.search) == inspect.signature(Project.retrieve)
    for name, awaited in twins():
        if name == "search":
            continue
        blocking, twin = getattr(Project, name), getattr(Project, awaited)
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.signature(blocking) == inspect.signature(twin)
        for method, expected in ((blocking, name), (twin, awaited)):
            assert (method.__name__, method.__qualname__) == (expected, f"Project.{expected}")
            assert method.__doc__
        if name not in ("retrieve", "ask", "chat"):
            assert blocking.__doc__ == twin.__doc__


async def test_an_async_method_does_the_same_as_its_blocking_twin(manager: ProjectManager, text_folder: Path) -> None:
    llm = ScriptedLLM()
    project = manager.create("awaited", ProjectConfig(), llm=llm, embed_model=CountingEmbedding())
    expected = project.estimate([text_folder], batch=True)
    assert (await project.aestimate([text_folder], batch=True)).to_dict() == expected.to_dict()
    llm.enqueue(ValueError("no context today"))
    (failure,) = (await project.aingest([text_folder])).failures
    messages: list[IngestProgress] = []
    assert (await project.aretry_failed(progress=messages.append)).rebuilt == (failure.doc_id,)
    assert messages[-1].stage == "done"
    project.update_config(chunk_size=400, chunk_overlap=0)
    assert len((await project.arebuild()).rebuilt) == 2
    assert (await project.aremove("reports/quarter.md", forget=True)).removed == ("reports/quarter.md",)
    assert [version.documents for version in project.versions()] == [1]


# ---- documents -----------------------------------------------------------------------------------------------------


def test_the_documents_are_listed_with_their_metadata(reports: Project) -> None:
    assert [(d.doc_id, d.file_name, d.chunks) for d in reports.documents()] == [
        ("reports/manual.txt", "manual.txt", 1),
        ("reports/quarter.md", "quarter.md", 1),
    ]
    info = reports.info()
    assert (info.version, info.documents, info.chunks) == ("v000001", 2, 2)
    assert info.tokens == sum(record.tokens for record in reports.documents()) > 0
    part = reports.directory / "parts" / "p000001"
    size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    assert 0 < info.bytes <= size


def test_the_offsets_of_a_result_give_its_text_in_the_document(reports: Project) -> None:
    for chunk in reports.retrieve("revenue of the pump division, error TS-104"):
        source = chunk.source
        assert source.doc_id is not None
        assert source.start_char is not None
        assert reports.read(source.doc_id, source.start_char, source.end_char) == chunk.text
    assert reports.read("reports/manual.txt") == documents.TEXT
    assert reports.read("reports/manual.txt", 0, 9) == documents.TEXT[:9]


# ---- contents of its files ------------------------------------------------------------------------------------------


def test_no_file_of_an_export_holds_an_absolute_path(
    manager: ProjectManager, tiny_folder: Path, tmp_path: Path
) -> None:
    project = manager.create("a", ProjectConfig.local())
    project.ingest([str(tiny_folder.resolve())])
    project.retrieve("error TS-999")
    here = [part.encode(code) for part in (str(tmp_path), tmp_path.name) for code in ("utf-8", "utf-16-le")]
    project.export(tmp_path / "exported")
    for path in (tmp_path / "exported").rglob("*"):
        if path.is_file():
            assert not [needle for needle in here if needle in path.read_bytes()], path.name


def test_repr_survives_a_damaged_project(project: Project, text_folder: Path) -> None:
    project.ingest([text_folder])
    assert repr(project) == "Project('reports', version='v000001')"
    (project.directory / "CURRENT").write_text("junk")
    assert repr(project) == "Project('reports', version=damaged)"


def test_a_damaged_ledger_is_named_with_a_solution(project: Project, text_folder: Path) -> None:
    project.ingest([text_folder])
    (project.directory / "ledger.sqlite").write_bytes(b"no database " * 500)
    for call in (project.info, lambda: project.ingest([text_folder])):
        with pytest.raises(ProjectError, match=r"ledger\.sqlite"):
            call()
    assert project.retrieve("error TS-999")[0].source.file_name == "manual.txt"


# ---- progress ------------------------------------------------------------------------------------------------------


def test_unchanged_documents_do_not_count_in_the_progress(project: Project, text_folder: Path) -> None:
    project.ingest([text_folder / "manual.txt"])
    states: list[IngestProgress] = []
    project.ingest([text_folder], progress=states.append)
    assert {state.documents_total for state in states} == {1}
    again: list[IngestProgress] = []
    project.ingest([text_folder], progress=again.append)
    assert again == []


def test_a_large_document_moves_the_bar_before_it_is_complete(manager: ProjectManager, tmp_path: Path) -> None:
    text = "\n\n".join(f"Section {n}. " + "The pump was inspected and found in order. " * 8 for n in range(40))
    (tmp_path / "long.txt").write_text(text)
    states: list[IngestProgress] = []
    project = manager.create("a", ProjectConfig.local(context="llm", chunk_size=64, chunk_overlap=0), llm=ScriptedLLM())
    project.ingest([tmp_path / "long.txt"], progress=states.append)
    shares = [state.share_done for state in states if state.documents_done == 0]
    assert len(set(shares)) > 20


def test_an_interruption_leaves_the_old_version_live_and_keeps_paid_contexts(
    manager: ProjectManager, text_folder: Path
) -> None:
    llm = ScriptedLLM()
    project = manager.create("a", ProjectConfig.local(context="llm"), llm=llm)
    project.ingest([text_folder / "manual.txt"])

    def interrupt(state: IngestProgress) -> None:
        if state.chunks_done:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        project.ingest([text_folder], progress=interrupt)
    assert [version.name for version in project.versions()] == ["v000001"]
    assert project.info().ledger.contexts == 2
    calls = len(llm.history)
    assert project.ingest([text_folder]).contexts_paid == 0
    assert len(llm.history) == calls


# ---- the number of results has two names -----------------------------------------------------------------------------


def test_the_number_of_results_has_both_names_in_every_search_retriever_and_engine(
    project: Project, text_folder: Path
) -> None:
    project.ingest([text_folder])
    query, llm = "error pump revenue", ScriptedLLM()
    index, store = project.index, project.storage_context.docstore
    nodes = list(store.docs.values())
    assert len(nodes) == 2
    doors: list[Callable[..., Any]] = [
        lambda **k: project.retrieve(query, **k),
        lambda **k: asyncio.run(project.aretrieve(query, **k)),
        lambda **k: project.retrieve_many([query], **k)[0],
        lambda **k: project.as_retriever(**k).retrieve(query),
        lambda **k: project.as_query_engine(llm=llm, **k).retrieve(QueryBundle(query)),
        lambda **k: project.as_chat_engine(llm=llm, **k).chat(query).source_nodes,
        lambda **k: SemanticRetriever(index, **k).retrieve(query),
        lambda **k: LexicalRetriever.from_defaults(nodes=nodes, **k).retrieve(query),
        lambda **k: HybridRetriever([LexicalRetriever.from_defaults(nodes=nodes)], **k).retrieve(query),
    ]
    for number, door in enumerate(doors):
        results = [len(door(**k)) for k in ({"top_k": 1}, {"similarity_top_k": 1}, {"top_k": 1, "similarity_top_k": 1})]
        assert results == [1, 1, 1], number
        with pytest.raises(InputError, match="is 2 and top_k is 1, but both set the number of results"):
            door(top_k=1, similarity_top_k=2)


# ---- a model passed as an object -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "python", "command"),
    [
        ("OllamaEmbedding", "nomic", "update_config(embed_model='ollama:nomic')", "embed_model=ollama:nomic"),
        ("Mine", "mine@1", "embed_model=...).", "search it with `--mode lexical`"),
    ],
)
def test_a_project_loaded_without_the_object_that_built_its_index_names_the_model_and_what_to_type(
    manager: ProjectManager,
    text_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    python: str,
    command: str,
) -> None:
    class Embedding(CountingEmbedding):
        @classmethod
        def class_name(cls) -> str:
            return kind

    manager.create("p", ProjectConfig(context="none"), embed_model=Embedding(model_name=name)).ingest([text_folder])
    project = manager.load("p")
    built = f"{'ollama' if kind == 'OllamaEmbedding' else kind}:{name}"
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    more = Document(id_="more", text="More.")
    for attempt in (lambda: project.retrieve("error TS-999"), lambda: project.ingest([more])):
        with pytest.raises(ConfigurationError, match=re.escape(f"built with the embedding model '{built}'")) as raised:
            attempt()
        assert "load('p', embed_model=...)" in str(raised.value)
        assert python in str(raised.value)
        assert "OPENAI_API_KEY" not in str(raised.value)
        assert raised.value.remedy is not None
        assert command in raised.value.remedy.command_line
    assert project.retrieve("error TS-999", mode="lexical")[0].source.file_name == "manual.txt"
    assert manager.load("p", embed_model=Embedding(model_name=name)).retrieve("error TS-999").mode_used == "hybrid"


def test_a_model_without_a_name_is_no_obstacle_where_nothing_is_embedded(
    manager: ProjectManager, text_folder: Path
) -> None:
    config = ProjectConfig(context="none", indexes="lexical")
    project = manager.create("p", config, embed_model=CountingEmbedding(model_name=""))
    assert project.ingest([text_folder]).added
    assert manager.load("p").retrieve("error TS-999").mode_used == "lexical"


def test_a_model_passed_as_an_object_is_recreated_by_name(
    manager: ProjectManager, openai: LoopbackProvider, text_folder: Path
) -> None:
    model = OpenAIEmbedding(
        model_name="text-embedding-3-large", api_base=openai.api_base, api_key=SECRET, dimensions=64, max_retries=0
    )
    manager.create("p", ProjectConfig(context="none"), embed_model=model).ingest([text_folder])
    project = manager.load("p")
    assert project.retrieve("error TS-999", mode="semantic")[0].source.file_name == "manual.txt"
    assert project.embed_model.model_name == "text-embedding-3-large"
    assert project.ingest([Document(id_="new", text="A new pump.")]).added == ("new",)
    stored = (project.directory / "project.json").read_text("utf-8")
    assert '"dimensions": 64' in stored
    assert SECRET not in stored


def test_a_key_is_sent_only_to_the_address_in_the_environment(
    manager: ProjectManager, openai: LoopbackProvider, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OpenAIEmbedding(model_name="text-embedding-3-large", api_base=openai.api_base, api_key=SECRET)
    manager.create("p", ProjectConfig(context="none"), embed_model=model).ingest([text_folder])
    sent = openai.totals()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match=re.escape(f"(OpenAIEmbedding at {openai.api_base})")):
        manager.load("p").retrieve("error TS-999")
    assert openai.totals() == sent


class Served(CountingEmbedding):
    """A model with the name of one that can be created."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of Ollama's class."""
        return "OllamaEmbedding"


class Other(Served):
    """Gives every text another vector."""

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector[1:] + vector[:1] for vector in await super()._aget_text_embeddings(texts)]


def test_a_model_of_the_same_name_with_other_vectors_is_refused(
    manager: ProjectManager, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create("p", ProjectConfig(context="none"), embed_model=Served(model_name="mine")).ingest([text_folder])
    monkeypatch.setattr(models, "load_embed_model", lambda name, **_: Served(model_name="mine"))
    assert manager.load("p").retrieve("error TS-999").mode_used == "hybrid"
    monkeypatch.setattr(models, "load_embed_model", lambda name, **_: Other(model_name="mine"))
    with pytest.raises(ConfigurationError, match="built with the embedding model 'ollama:mine'"):
        manager.load("p").retrieve("error TS-999")
    manager.load("p").update_config(embed_model="local")
    assert "embed_object" not in (manager.root / "p" / "project.json").read_text("utf-8")


def test_a_model_of_a_run_that_published_nothing_is_not_remembered(
    manager: ProjectManager, openai: LoopbackProvider, text_folder: Path, tmp_path: Path
) -> None:
    project = manager.create("p", ProjectConfig(context="none"), embed_model=CountingEmbedding(model_name="mine@1"))
    with pytest.raises(PathNotFoundError):
        project.ingest([tmp_path / "absent.md"])
    assert manager.load("p").ingest([text_folder]).added
    assert openai.embedding_calls


def test_an_object_of_the_model_that_the_settings_name_needs_no_address(
    manager: ProjectManager, openai: LoopbackProvider, text_folder: Path
) -> None:
    model = OpenAIEmbedding(api_base=openai.api_base.replace("127.0.0.1", "localhost"), api_key=SECRET, dimensions=64)
    config = ProjectConfig(context="none", embed_model=f"openai:{model.model_name}")
    manager.create("p", config, embed_model=model).ingest([text_folder])
    assert manager.load("p").retrieve("error TS-999").mode_used == "hybrid"
