"""Streamed answers with valid and invalid citations, cut into random pieces, and what their readers see."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen

from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.query_engine import AnswerOptions, GroundedQueryEngine
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

SOURCES = 3

# More lenient than the package: any bracket that begins with a source and a number.
_SHOWN = re.compile(r"[\[［【〔]\s*sources?\b[\s\\.:：,-]*\d[^\[\]［］【】〔〕]*", re.IGNORECASE)
_FORMS = (
    *("[Source {}]", "[source {}]", "[Sources {}, {}]", "[Sources {} and {}]", "[Source: {}]", "[ Source {} ]"),
    *("[SOURCE\n{}]", "【Source {}】", "［Source {}］", "〔Sources {}、{}〕", "[Source：{}]", "\\[Source {}\\]"),
    *("**[Source {}]**", "[[Source {}]]", "[Sou[Source {}]rce {}]", "([Source {}])", "[Source {}", "[Sources {}-{}]"),
    *("[Source {}](https://example.org)", "> [Source {}]\n", "[Source {}][Source {}]"),
)
_WORDS = ("The pump", "runs dry", "three days", "[sic]", "[", "]", "[Sour", "a [link](https://x.org/a)", "`x[1]`")
_SPACES = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "")


class PieceLLM(ScriptedLLM):
    """A model that streams its answer in given pieces."""

    pieces: list[str]

    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        """Return the pieces."""

        async def answer() -> ChatResponseAsyncGen:
            for piece in self.pieces:
                yield ChatResponse(message=ChatMessage(role="assistant", content=piece), delta=piece)

        return answer()


def random_answer(source: random.Random) -> str:
    """Return an answer with valid and invalid citations in many forms, among other brackets."""
    parts = ["Reasoning [Source 77].\nAnswer: "] if source.random() < 0.3 else []
    for _ in range(source.randint(1, 14)):
        if source.random() < 0.6:
            form = source.choice(_FORMS)
            numbers = [source.choice((1, 2, SOURCES, 0, 4, 12, 99, 1234567, "９９")) for _ in range(form.count("{}"))]
            parts.append(form.format(*numbers))
        else:
            parts.append(source.choice(_WORDS))
        parts.append(source.choice(_SPACES))
    return "".join(parts)


def random_pieces(text: str, source: random.Random) -> list[str]:
    """Return the text cut into single characters, words, or pieces of random length."""
    longest = source.choice((1, 1, 3, 10, 1000))
    pieces = []
    while text:
        length = source.randint(1, longest)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def invalid_citations(text: str) -> list[str]:
    """Return the citations of sources that do not exist, found by another rule than the package's."""
    cited = [match[0] for match in _SHOWN.finditer(text)]
    return [mark for mark in cited if any(not 1 <= int(number) <= SOURCES for number in re.findall(r"\d+", mark))]


@dataclass(frozen=True)
class Streamed:
    """What the readers of the answers saw.

    Attributes:
        planted: Number of answers by kind.
        shown: Invalid citations that a reader saw at any time, with the answer.
        differing: Answers whose streamed text is not the final one.
    """

    planted: Counter[str]
    shown: Sequence[tuple[str, str]]
    differing: Sequence[tuple[str, str, str]]


def measure(answers: int, seed: int) -> Streamed:
    """Stream random answers through the engine, in every style, with and without guards."""
    source = random.Random(seed)
    planted: Counter[str] = Counter()
    shown, differing = [], []
    for _ in range(answers):
        answer = random_answer(source)
        style, guards = source.choice(("instruction", "chain_of_thought")), source.choice((None, Guards(mask=())))
        llm = PieceLLM(pieces=random_pieces(answer, source))
        options = AnswerOptions(style=style)
        retriever = FixedRetriever(hits(a=3.0, b=2.0, c=1.0))
        engine = GroundedQueryEngine(retriever, llm, options=options, guards=guards, streaming=True)
        stream: Any = engine.query("Is it so?")
        seen = "".join(stream.response_gen)
        final = stream.get_response()
        planted["answers"] += 1
        planted["with an invalid citation"] += bool(invalid_citations(answer))
        planted["invalid citations"] += len(invalid_citations(answer))
        planted["reported as invalid"] += len(final.citations.invalid)
        shown += [(mark, answer) for mark in invalid_citations(seen)]
        if seen != final.response:
            differing.append((answer, seen, final.response))
    return Streamed(planted, shown, differing)
