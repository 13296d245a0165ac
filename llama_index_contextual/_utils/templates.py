"""Prompt templates: validation, substitution of variables in one pass, and text that cannot end its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.errors import ConfigurationError

PUBLISHED_NAMES = {"{{WHOLE_DOCUMENT}}": "{segment}", "{{CHUNK_CONTENT}}": "{chunk}"}
"""The variable names of the published prompt, with the corresponding names in this package.

The prompt was published at https://www.anthropic.com/news/contextual-retrieval."""

OF_SEGMENT = ("header", "segment")
OF_CHUNK = ("chunk", "neighbours")

_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
# What may enclose a variable in a template: tags, [DOC] and [/DOC], lines such as ``` or -----, and labels.
_TAG = re.compile(r"</?\s*([^\W\d_][\w-]*)")
_BRACKETS = re.compile(r"\[/\s*([^\W\d_][\w-]*)\s*\]")
_FENCE = re.compile(r"^[ \t]*(([-=_*#~+`\"'])\2{2,})[A-Za-z]*[ \t]*$", re.MULTILINE)
_LABEL = re.compile(r"(?:^[ \t]*|\})([^\W\d_][\w ]{0,40})[:：](?=\s*\{[A-Za-z_]\w*\})", re.MULTILINE)
_INVISIBLE = "\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
# Special tokens with which models separate messages, as in <|im_start|>, <start_of_turn>, <<SYS>>, [INST] and </s>.
_MESSAGE_MARK = (
    r"[<＜](?=[|｜][^<>|｜\s]{1,40}[|｜][>＞]|/?(?:start_of_turn|end_of_turn|bos|eos)>|/s>|</?SYS>>)|\[(?=/?INST\])"
)
_LOOKALIKES = str.maketrans("<＜[:：-=_*#~+`\"'", "‹‹(﹕﹕–꞊‗∗﹟∼﹢ˋ”’")


@dataclass(frozen=True)
class ContextPrompt:
    """A validated template with the values of its additional variables.

    The part before {chunk} and {neighbours} is the same in all calls for a segment, so that a provider can cache it.

    Args:
        text: Template with {segment} and {chunk}, and optionally {header}, which identifies the document, and
            {neighbours}, the first sentences of the previous and the next chunk. The variable names of the published
            prompt are also accepted.
        variables: Values of additional variables, such as a glossary.

    Raises:
        ConfigurationError: A variable is missing or unknown, or {chunk} or {neighbours} comes before {header} or
            {segment}.

    Example:
        >>> prompt = ContextPrompt("{terms} {segment} Situate: {chunk}", {"terms": "TS: temperature sensor."})
        >>> prompt.prefix({"segment": "The text."})
        'TS: temperature sensor. The text. Situate: '
    """

    text: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", check_template(self.text, self.variables))

    @property
    def identity(self) -> str:
        """String that represents this prompt in context keys."""
        return self.text + json.dumps(dict(sorted(self.variables.items()))) if self.variables else self.text

    def prefix(self, values: Mapping[str, str]) -> str:
        """Return the part that is the same in all calls for a segment, with its variables filled in."""
        return self._fill(self.text[: self._split()], values).lstrip()

    def suffix(self, values: Mapping[str, str]) -> str:
        """Return the part that begins with {chunk} or {neighbours}, with its variables filled in."""
        return self._fill(self.text[self._split() :], values).rstrip()

    def _split(self) -> int:
        return next(match.start() for match in _VARIABLE.finditer(self.text) if match[1] in OF_CHUNK)

    def _fill(self, template: str, values: Mapping[str, str]) -> str:
        return fill(template, {**self.variables, **values})


def fill(template: str, values: Mapping[str, str]) -> str:
    """Substitute the variables of a template in one pass; variables inside values are not substituted.

    Example:
        >>> fill('{question}: {"found": {count}}', {"question": "What is {count}?", "count": "3"})
        'What is {count}?: {"found": 3}'
    """
    return _VARIABLE.sub(lambda match: values[match[1]], template)


def check_template(template: str, variables: Mapping[str, str] | None = None) -> str:
    """Check a prompt template and return it with the variable names of the published prompt replaced.

    Args:
        template: See `ContextPrompt`.
        variables: Values of additional variables; the template must use each of them.

    Raises:
        ConfigurationError: The template is invalid.
    """
    for name_in_prompt, ours in PUBLISHED_NAMES.items():
        template = template.replace(name_in_prompt, ours)
    free = variables or {}
    for name in free:
        if not _NAME.fullmatch(name) or name in (*OF_SEGMENT, *OF_CHUNK):
            raise _refused(f"a variable of your own cannot be called {name!r}", setting="variables")
    names = _VARIABLE.findall(template)
    if unknown := [name for name in names if name not in (*OF_SEGMENT, *OF_CHUNK, *free)]:
        raise _refused(
            f"{{{unknown[0]}}} is not a variable: use {{header}}, {{segment}} and {{chunk}}, or add its value to"
            f" `variables` of LLMContextualizer"
        )
    if "chunk" not in names or "segment" not in names:
        raise _refused("it needs both {segment} and {chunk}")
    if unused_names := [name for name in free if name not in names]:
        raise _refused(f"it does not use {{{unused_names[0]}}}, which is in `variables`", setting="variables")
    last_of_segment = max(at for at, name in enumerate(names) if name in OF_SEGMENT)
    if min(at for at, name in enumerate(names) if name in OF_CHUNK) < last_of_segment:
        raise _refused("{chunk} must come after {header} and {segment}, so that the provider can cache the common part")
    return template


def require_known(names: Iterable[str], prompts: Iterable[str]) -> None:
    """Check the prompt names passed to LlamaIndex's `update_prompts`, which ignores unknown names.

    Args:
        names: Names given by the user; names with a colon refer to prompts of other modules.
        prompts: Names of the prompts that can be changed.

    Raises:
        ConfigurationError: A name is unknown.
    """
    prompts = sorted(prompts)
    if unknown := [name for name in names if ":" not in name and name not in prompts]:
        raise ConfigurationError(
            f"There is no prompt {unknown[0]!r}{nearest(unknown[0], prompts)}. Its prompts are {', '.join(prompts)}.",
            setting=unknown[0],
        )


def _refused(reason: str, *, setting: str = "context_prompt") -> ConfigurationError:
    return ConfigurationError(f"The context prompt cannot be used: {reason}.", setting=setting)


def enclosed(text: str, template: str = "") -> str:
    """Replace characters so that nothing in a text can be mistaken for the end of its place in a prompt.

    Characters are replaced by similar ones in everything that encloses a variable in the template: tags, brackets such
    as [DOC] and [/DOC], lines of hyphens or backquotes, and labels such as "Question:". The same applies to the special
    tokens with which many models separate messages. The length of the text does not change.

    Args:
        text: Text from a document, a model or a user.
        template: The template in which the text is inserted.

    Example:
        >>> enclosed("2 < 3 </answer> <|im_start|>system <b>", "<answer>\\n{answer}\\n</answer>")
        '2 < 3 ‹/answer> ‹|im_start|>system <b>'
        >>> enclosed("```\\nQuestion: Why?", "```\\n{text}\\n```\\nQuestion: {question}")
        'ˋˋˋ\\nQuestion﹕ Why?'
    """
    return _marks_of(template).sub(lambda mark: mark[0].translate(_LOOKALIKES), text)


@lru_cache(maxsize=64)
def _marks_of(template: str) -> re.Pattern[str]:
    gap = rf"[\s/{_INVISIBLE}]*"
    marks = [_MESSAGE_MARK]
    for start, names in ((r"[<＜]", _TAG.findall(template)), (r"\[", _BRACKETS.findall(template))):
        marks += [rf"{start}(?={gap}{re.escape(name)}\b)" for name in sorted(set(names))]
    marks += [rf"{re.escape(sign)}{{3,}}" for sign in sorted({sign for _, sign in _FENCE.findall(template)})]
    marks += [rf"^[ \t]*{re.escape(label)}[ \t]*[:：]" for label in sorted(set(_LABEL.findall(template)))]
    return re.compile("|".join(marks), re.IGNORECASE | re.MULTILINE)
