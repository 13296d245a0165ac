"""`ask` and `chat`: output with an LLM on the loopback interface and without one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED
from llama_index_contextual.answering.prompts import SMALL_TALK
from llama_index_contextual.cli import common
from llama_index_contextual.config import DEFAULT_LLM
from llama_index_contextual.project.project import Project
from tests.support.cli import Result, run
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
READ = "Read, but not cited:\n  2. quarter.md, section Orlen Valve Works, second quarter > Results; Outlook\n"
USAGE = r"openai:\S+: [\d,]+ tokens in, [\d,]+ out, \$[\d.]+"


@pytest.fixture(autouse=True)
def without_cache(ingested: Project) -> None:
    """Project "a", which answers with OpenAI's model, and no question from its cache."""
    ingested.update_config(answer_cache=False, answer_llm=DEFAULT_LLM)


def ask(*arguments: object, question: str = QUESTION) -> Result:
    return run("ask", "a", question, *arguments)


def chat(*lines: str, options: tuple[object, ...] = ()) -> Result:
    return run("chat", "a", *options, answer="".join(f"{line}\n" for line in lines))


def prompt(provider: LoopbackProvider, number: int) -> str:
    """Return the words of a call."""
    return "\n".join(message["content"] for message in provider.calls()[number].body["messages"])


@pytest.mark.parametrize(
    ("answer_llm", "problem"),
    [
        (DEFAULT_LLM, "'openai:gpt-6-luna' needs OPENAI_API_KEY, which is not set. Either set it in the environment"),
        (None, "Project 'a' has no LLM, because its settings name none: name one with --llm, such as ollama:llama3.1"),
    ],
)
def test_without_an_llm_the_best_passages_are_shown_with_a_note(
    ingested: Project, answer_llm: str | None, problem: str
) -> None:
    ingested.update_config(answer_llm=answer_llm)
    result = ask()
    assert result.code == 0
    assert result.err.startswith(f"No LLM answer: {problem}")
    assert result.err.count("\n") == 1
    assert result.out.splitlines()[2] == " 1. reports/manual.txt"
    assert "Error TS-999 means that the pump runs dry." in result.out
    as_json = ask("--json").json
    assert as_json["answer"] is None
    assert as_json["retrieval"]["results"][0]["source"]["file_name"] == "manual.txt"
    assert as_json["error"].startswith(problem)
    conversation = chat(QUESTION)
    assert (conversation.code, conversation.out) == (0, result.out)
    assert "Showing the best passages instead." in conversation.err


def test_an_answer_is_shown_with_its_sources_and_problems(provider: LoopbackProvider) -> None:
    provider.enqueue("“the pump runs dry” [Source 1]. “It costs a lot now” 77 [Source 1] [Source 8].")
    result = ask("--llm", "openai:gpt-4o-mini")
    cited = "“the pump runs dry” [Source 1]. “It costs a lot now” 77 [Source 1].\n[Source 1] manual.txt\n"
    supported = (
        "Statements and the sentences that support them:\n"
        "  “the pump runs dry”. → [Source 1] manual.txt: “the pump runs dry”\n"
        "  “It costs a lot now” 77. → no source\n"
    )
    assert result.out == f"{cited}{READ}{supported}"
    *findings, usage = result.err.splitlines()
    assert findings == [
        "A citation of Source 8, which does not exist, was removed.",
        "1 quotation in no passage: It costs a lot now",
        "1 figure in no cited passage: 77",
    ]
    assert re.fullmatch(USAGE, usage)
    assert re.search(r"answers +\$[\d.]+  openai:gpt-4o-mini; \d+ calls?\n", run("cost", "a").out)


def test_an_answer_that_cites_nothing_says_so_and_lists_no_sources(provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry.")
    result = ask()
    assert result.out.startswith("The pump runs dry.\nRead, but not cited:\n  1. manual.txt\n  2. quarter.md")
    assert "\n[Source" not in result.out
    assert "\n  The pump runs dry. → [Source 1] manual.txt: “Error TS-999 means that the pump runs dry." in result.out
    assert result.err.startswith("The answer cites no source.\n")


def test_an_answer_is_json_when_it_is_asked_for(provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry [Source 1].")
    result = ask("--json", "--set", "style=persona")
    assert (result.json["answer"], result.json["found"]) == ("The pump runs dry [Source 1].", True)
    assert "few words" in prompt(provider, 0)


def test_a_shortened_question_and_a_partial_answer_are_reported(provider: LoopbackProvider) -> None:
    provider.enqueue("one two three four five six seven eight nine ten eleven twelve thirteen")
    provider.fault("drop_in_body")
    result = ask(question=f"{QUESTION} {'pump ' * 10_000}")
    assert "The query has 50,028 characters: only its beginning, " in result.err
    assert len(prompt(provider, 0)) < 50_000
    assert "The answer is incomplete: The answer broke off." in result.err
    assert result.out.startswith("one two three four")


@pytest.mark.parametrize(
    ("reply", "options", "shown"),
    [
        ("red \x1b[31m [bold]and[/bold] \x07 so", [], "red [31m [bold]and[/bold]  so\n"),
        (
            "Ask ann@example.org <script>x</script>.",
            ["--set", "guards=true"],
            "Ask •••@•••••••.••• &lt;script>x&lt;/script>.\n",
        ),
    ],
)
def test_an_answer_cannot_act_on_the_terminal_and_hides_personal_data(
    provider: LoopbackProvider, reply: str, options: list[str], shown: str
) -> None:
    provider.enqueue(reply)
    assert ask(*options).out.startswith(shown)


@pytest.mark.parametrize(
    ("verdict", "shown", "finding"),
    [
        (
            '{"unsupported": [], "relevant": true, "confidence": 0.9}',
            f"It flies [Source 1].\n[Source 1] manual.txt\n{READ[:-1]}",
            "",
        ),
        ('{"unsupported": ["It flies."], "relevant": true, "confidence": 0.9}', FALLBACK, "The judge withheld"),
        ("Well.", NOT_JUDGED, "The judge could not check the answer: The reply of the judge does not contain a valid"),
    ],
    ids=["passed", "blocked", "failed"],
)
def test_a_judged_answer_is_shown_or_withheld_without_sources(
    provider: LoopbackProvider, verdict: str, shown: str, finding: str
) -> None:
    provider.enqueue("It flies [Source 1].", verdict)
    result = ask("--set", "judge=true")
    assert result.out == f"{shown}\n"
    *findings, usage = result.err.splitlines()
    assert " ".join(findings).startswith(finding)
    assert bool(findings) == bool(finding)
    assert ": 2 calls, " in usage


def test_a_question_can_be_searched_by_its_intent_which_a_model_can_find(provider: LoopbackProvider) -> None:
    assert ask("--set", "intents=true", question="Thank you!").out == f"{SMALL_TALK}\n"
    assert provider.calls() == []
    result = chat("How do I repair TS-999?", options=("--set", "intents=true", "--follow-ups", "simple", "--json"))
    assert result.json[0]["retrieval"]["intent"] == "procedural"
    provider.enqueue("temporal", "The pump runs dry [Source 1].")
    assert ask("--set", "intents=llm", "--json", question="Pumps TS-999").json["retrieval"]["intent"] == "temporal"


def test_a_wrong_timeout_and_a_model_that_fails_are_one_line(provider: LoopbackProvider) -> None:
    wrong = ask("--set", "call_timeout=0")
    assert wrong.code == 1
    assert wrong.err.startswith("Error: Setting 'call_timeout' cannot be 0: ")
    provider.fault("hang", times=None)
    assert "0.2 seconds" in ask("--set", "first_token_timeout=0.2").err
    provider.clear_faults()
    provider.fault("invalid_key")
    result = ask()
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith("Error: The provider of 'openai:gpt-6-luna' refused the API key")


def test_an_answer_is_rendered_on_a_terminal_and_unchanged_for_other_programs(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "**Dry**: the `pump` stops [Source 1].\n\n1. Close it.\n\n2. Wait."
    provider.enqueue(text, text)
    assert ask().out.startswith(f"{text}\n")
    screen = io.StringIO()
    monkeypatch.setattr(common, "out", Console(file=screen, force_terminal=True, width=60, color_system=None))
    ask()
    shown = screen.getvalue()
    assert not {"**", "`"} & set(re.findall(r"\*\*|`", shown))
    numbered = [line.strip() for line in shown.splitlines() if line.strip().startswith(("1 ", "2 "))]
    assert numbered[-2:] == ["1 Close it.", "2 Wait."]


def test_a_repeated_question_is_answered_from_the_cache_which_is_said(
    provider: LoopbackProvider, ingested: Project
) -> None:
    ingested.update_config(answer_cache=True)
    provider.enqueue("The pump runs dry [Source 1].")
    first, second, third = ask(), ask(), chat(QUESTION)
    assert first.out == second.out == third.out
    *notes, usage = first.err.splitlines()
    assert re.fullmatch(USAGE, usage)
    assert second.err.splitlines() == [*notes, "From the cache: no tokens sent for this answer."]
    assert second.err in third.err
    assert ask("--json").json["from_cache"]
    assert len(provider.calls()) == 1
    assert not ask("--json", "--set", "answer_cache=false").json["from_cache"]


# ---- conversations ---------------------------------------------------------------------------------------------------


def test_a_conversation_answers_line_by_line(provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry [Source 1].", "Because of V2 [Source 1].")
    result = chat(QUESTION, "", "And why does it?", "/quit", "never")
    assert result.code == 0
    first = f"The pump runs dry [Source 1].\n[Source 1] manual.txt\n{READ}"
    assert result.out.startswith(first)
    assert "\nBecause of V2 [Source 1].\n[Source 1] manual.txt\n" in result.out
    assert QUESTION in prompt(provider, 1)


def test_a_conversation_survives_an_error_and_forgets_when_it_is_reset(provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry.")
    provider.fault("invalid_key", after=1)
    result = chat(QUESTION, QUESTION, "/reset", QUESTION, options=("--json",))
    assert [turn.get("error", "")[:12] for turn in result.json] == ["", "The provider", ""]
    assert "The pump runs dry." not in prompt(provider, -1).partition("Sources:")[0]


def test_commands_and_thanks_in_a_chat_cost_no_call(provider: LoopbackProvider) -> None:
    for line in ("exit", "quit", "Quit", ":q", "/exit", "/quit"):
        result = chat(line, QUESTION)
        assert (result.code, result.out) == (0, "")
    result = chat("/help", "/hlep", "thanks!")
    assert result.out == f"{SMALL_TALK}\n"
    helped, unknown = result.err.splitlines()
    assert helped.startswith("/reset clears the conversation; ")
    assert unknown == helped
    assert provider.calls() == []


# ---- evaluated answers -----------------------------------------------------------------------------------------------


def test_answers_can_be_evaluated(provider: LoopbackProvider, tmp_path: Path) -> None:
    questions, report = tmp_path / "qa.jsonl", tmp_path / "out.csv"
    questions.write_text(f'{{"question": "{QUESTION}", "answers": ["the pump runs dry"]}}\n', encoding="utf-8")
    long = "According to the manual, the error means that the pump of the station runs dry [Source 1]."
    provider.enqueue("The pump runs dry [Source 1].", long)
    result = run("evaluate", "a", questions, "--answers", "--yes", "--report", report)
    header, figures, usage = result.out.splitlines()
    assert header.split() == ["questions", "exact", "f1", "not", "found", "errors", "failed", "retrievals"]
    assert figures.split() == ["1", "1.000", "1.000", "0", "0", "0"]
    assert re.fullmatch(USAGE, usage)
    assert "gpt-6-luna" in report.read_text(encoding="utf-8")
    wrong = run("evaluate", "a", questions, "--answers", "--yes")
    assert wrong.out.endswith(f"{QUESTION}\n  expected: the pump runs dry\n  answered: {long}\n")
    assert "style=persona" in wrong.err
    refused = run("evaluate", "a", questions, "--answers", "--compare", "none,structural")
    assert refused.code == 1
    assert "omit --compare, --steps, --sweep and --rerank" in refused.err
    questions.write_text("{}\n", encoding="utf-8")
    assert 'qa.jsonl, line 1: has no "question"' in run("evaluate", "a", questions, "--answers").err
