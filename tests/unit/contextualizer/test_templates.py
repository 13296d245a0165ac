"""Prompt templates: accepted and refused templates, and substitution."""

from __future__ import annotations

import pytest

from llama_index_contextual._utils.templates import ContextPrompt, check_template
from llama_index_contextual.errors import ConfigurationError

VALUES = {"header": "Title: Manual", "segment": "The text.", "chunk": "The chunk.", "neighbours": "Before."}


def test_prefix_and_suffix_are_the_whole_template() -> None:
    prompt = ContextPrompt("\n {terms}\n{header}|{segment}|{chunk}|{neighbours}\n", {"terms": "TS: sensor"})
    assert prompt.prefix(VALUES) == "TS: sensor\nTitle: Manual|The text.|"
    assert prompt.suffix(VALUES) == "The chunk.|Before."


def test_placeholders_in_a_variable_are_not_filled_in() -> None:
    prompt = ContextPrompt("{terms} {segment} {chunk}", {"terms": "{chunk} is a word here"})
    assert prompt.prefix(VALUES) == "{chunk} is a word here The text. "


def test_a_custom_variable_may_follow_the_chunk() -> None:
    assert ContextPrompt("{segment} {chunk} {rules}", {"rules": "Be short."}).suffix(VALUES) == "The chunk. Be short."


def test_the_published_names_are_those_of_the_variables() -> None:
    assert ContextPrompt("{{WHOLE_DOCUMENT}} {{CHUNK_CONTENT}}") == ContextPrompt("{segment} {chunk}")


def test_template_and_variables_make_the_identity() -> None:
    template = "{a} {b} {segment} {chunk}"
    prompts = [
        ContextPrompt("{segment} {chunk}"),
        ContextPrompt(template, {"a": "1", "b": "2"}),
        ContextPrompt(template, {"a": "2", "b": "1"}),
        ContextPrompt("{a} {b}  {segment} {chunk}", {"a": "1", "b": "2"}),
    ]
    assert len({prompt.identity for prompt in prompts}) == 4
    assert prompts[1].identity == ContextPrompt(template, {"b": "2", "a": "1"}).identity
    assert prompts[0].identity == "{segment} {chunk}", "what was paid for without variables stays known"


@pytest.mark.parametrize(
    ("template", "variables", "setting", "reason"),
    [
        ("Say something.", {}, "context_prompt", r"it needs both \{segment\} and \{chunk\}"),
        ("{segment}", {}, "context_prompt", r"it needs both \{segment\} and \{chunk\}"),
        ("{chunk}", {}, "context_prompt", r"it needs both \{segment\} and \{chunk\}"),
        ("{chunk} {segment}", {}, "context_prompt", r"\{chunk\} must come after \{header\} and \{segment\}"),
        ("{segment} {chunk} {header}", {}, "context_prompt", r"\{chunk\} must come after"),
        ("{neighbours} {segment} {chunk}", {}, "context_prompt", r"\{chunk\} must come after"),
        ("{segment} {chunk} {terms}", {}, "context_prompt", r"\{terms\} is not a variable: use .* `variables`"),
        ("{segment} {chunk}", {"terms": "x"}, "variables", r"it does not use \{terms\}, which"),
        ("{segment} {chunk}", {"chunk": "x"}, "variables", "a variable of your own cannot be called 'chunk'"),
        ("{segment} {chunk}", {"a b": "x"}, "variables", "a variable of your own cannot be called 'a b'"),
    ],
)
def test_other_templates_are_refused_with_the_reason(
    template: str, variables: dict[str, str], setting: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^The context prompt cannot be used: {reason}") as raised:
        check_template(template, variables)
    assert raised.value.setting == setting
