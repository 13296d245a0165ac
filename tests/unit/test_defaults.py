"""One set of defaults: components, signatures and commands take those of the settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args

from llama_index.llms.openai import OpenAI
from pydantic import BaseModel

import llama_index_contextual as package
from llama_index_contextual import ContextWindowPacker, SegmentNodeParser
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.config import Mode, ProjectConfig, default
from llama_index_contextual.search.rank import FusionSettings
from llama_index_contextual.search.search import SearchSettings
from llama_index_contextual.search.spotlight import COMPARED
from tests.support.source import ROOT

OTHER_NAMES = {"similarity_top_k": "top_k", "num_workers": "llm_concurrency", "concurrency": "llm_concurrency"}
"""Settings with another name in LlamaIndex's interfaces."""

SAME_NAME = {
    "SearchPlan.top_k": "the number of passages for an intent",
    "User.requests_per_minute": "requests of a user to the API",
    "Judge.min_confidence": "the confidence of a verdict",
    "Ranking.document_weight": "a result",
    "_Step.__new__.rerank": "a step of a comparison",
    "GroundedChatEngine.mode": "how follow-up questions are searched",
    "Project.as_chat_engine.mode": "how follow-up questions are searched",
    **dict.fromkeys(("AnswerOptions.context", "passages_prompt.context"), "whether contexts are shown"),
    **dict.fromkeys(("sweep_answers.context", "Project.as_query_engine.context"), "whether contexts are shown"),
    **dict.fromkeys(
        ("Project.as_chat_engine.context", "Project.ask.context", "Project.aask.context"), "whether contexts are shown"
    ),
    **dict.fromkeys(("Analyzer.language", "LexicalIndexBuilder.language"), "the language of the texts"),
    **dict.fromkeys(("LexicalIndex.build.language", "DocumentIndex.build.language"), "the language of the texts"),
    **dict.fromkeys(
        ("SearchResponse.languages", "RetrievalResponse.languages", "Candidates.languages"), "those of the documents"
    ),
    **dict.fromkeys(("DocumentMap.figures", "add_html.figures", "_walk.figures"), "the figures of a document"),
    **dict.fromkeys(("FoundPassage.figures", "SourceView.figures", "Result.figures"), "the figures of a passage"),
    **dict.fromkeys(("MarkedPage.figures", "PassageView.figures"), "the figures on a page"),
}
"""Arguments and fields that have the name of a setting and mean something else."""


def setting_of(name: str) -> str | None:
    """Return the setting that an argument or field is named after."""
    setting = OTHER_NAMES.get(name, name)
    return setting if setting in ProjectConfig.model_fields else None


def defaults_of(kind: Any, name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the place, the name and the default of each field and argument of a class or function."""
    if inspect.isclass(kind):
        if issubclass(kind, BaseModel):
            for field, one in kind.model_fields.items():
                if not one.is_required():
                    yield f"{name}.{field}", field, one.get_default(call_default_factory=True)
        elif dataclasses.is_dataclass(kind):
            for one in dataclasses.fields(kind):
                if one.default is not dataclasses.MISSING:
                    yield f"{name}.{one.name}", one.name, one.default
        generated = {"__init__"} if dataclasses.is_dataclass(kind) else set()
        methods = [
            (f"{name}.{key}".removesuffix(".__init__"), value)
            for key, value in vars(kind).items()
            if key not in generated
        ]
    else:
        methods = [(name, kind)]
    for place, method in methods:
        function = inspect.unwrap(getattr(method, "__func__", method))
        if inspect.isfunction(method) or isinstance(method, classmethod | staticmethod):
            for parameter in inspect.signature(function).parameters.values():
                if parameter.default is not parameter.empty:
                    yield f"{place}.{parameter.name}", parameter.name, parameter.default


def all_defaults() -> Iterator[tuple[str, str, Any]]:
    """Yield all defaults of the modules that can be imported here."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # needs an extra
            continue
        for name, one in vars(loaded).items():
            if getattr(one, "__module__", None) == module.name and (inspect.isclass(one) or inspect.isfunction(one)):
                yield from defaults_of(one, name)


def test_no_default_contradicts_the_setting_of_its_name() -> None:
    compared, wrong = 0, []
    for place, name, value in all_defaults():
        setting = setting_of(name)
        if setting is None or place in SAME_NAME or place.startswith("ProjectConfig."):
            continue
        compared += 1
        # None and "" stand for the setting of the project.
        if value not in (None, "", default(setting)):
            wrong.append(f"{place} is {value!r}, the setting {setting} {default(setting)!r}")
    assert compared > 100
    assert wrong == []


def test_the_settings_of_fusion_and_search_are_those_of_a_project() -> None:
    config = ProjectConfig()
    assert FusionSettings() == FusionSettings.of(config)
    for mode in get_args(Mode):
        settings = SearchSettings.of(config, mode=mode, k=config.top_k, filters=None)
        assert SearchSettings(mode=mode) == settings
    assert SearchSettings().mode == config.mode


def test_sizes_with_names_of_their_own_follow_the_settings() -> None:
    config = ProjectConfig()
    assert SegmentNodeParser().segment_overlap == config.segment_size // 10
    assert ContextWindowPacker().max_tokens == config.answer_tokens
    assert Timeouts.for_model(OpenAI(api_key="any")) == Timeouts()


def test_the_page_about_fusion_states_the_defaults() -> None:
    semantic, lexical = FusionSettings().weights
    page = " ".join((ROOT / "docs/concepts/fusion.md").read_text(encoding="utf-8").split())
    assert f"with the weights {semantic} and {lexical}" in page
    assert f"of the first {COMPARED} hits" in page
