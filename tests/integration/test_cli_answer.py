"""`ask` and `chat`: output with an LLM on the loopback interface and without one."""

from __future__ import annotations

import io
import json
import re
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llama_index_contextual.answering.judge import FALLBACK, NOT_JUDGED
from llama_index_contextual.answering.prompts import SMALL_TALK
from llama_index_contextual.cli import answer
from llama_index_contextual.cli.answer import split_blocks
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.test_cli import Result, run
from tests.support.documents import write_texts
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
USAGE = r"openai:\S+: [\d,]+ tokens in, [\d,]+ out, \$[\d.]+"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with project "a"; no test changes it."""
    folder = write_texts(tmp_path_factory.mktemp("answers") / "reports")
    ProjectManager(folder.parent / "knowledge").create("a", ProjectConfig.local(answer_cache=False)).ingest([folder])
    return folder.parent / "knowledge"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The provider on the loopback interface, as the environment names it."""
    with LoopbackProvider() as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        yield provider


def command(root: Path, name: str, *arguments: object, lines: str | None = None) -> Result:
    return run(name, "a", *arguments, "--root", root, answer=lines)


def prompt(provider: LoopbackProvider, number: int) -> str:
    """Return the words of a call."""
    return "\n".join(message["content"] for message in provider.calls()[number].body["messages"])


def test_without_an_llm_the_best_passages_are_shown_with_a_note(root: Path) -> None:
    result = command(root, "ask", QUESTION)
    assert result.code == 0
    assert result.err.startswith("No LLM answer: 'openai:gpt-6-luna' needs OPENAI_API_KEY")
    assert result.err.count("\n") == 1
    assert result.out.splitlines()[2] == " 1. reports/manual.txt"
    assert "Error TS-999 means that the pump runs dry." in result.out
    as_json = command(root, "ask", QUESTION, "--json").json
    assert as_json["answer"] is None
    assert as_json["retrieval"]["results"][0]["source"]["file_name"] == "manual.txt"
    assert "OPENAI_API_KEY" in as_json["error"]


def test_an_answer_is_shown_with_its_sources_and_problems(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("“the pump runs dry” [Source 1]. “It costs a lot now” 77 [Source 1] [Source 8].")
    result = command(root, "ask", QUESTION)
    assert result.out == (
        "“the pump runs dry” [Source 1]. “It costs a lot now” 77 [Source 1].\n[Source 1] manual.txt\n"
    )
    *findings, usage = result.err.splitlines()
    assert findings == [
        "A citation of Source 8, which does not exist, was removed.",
        "Quotation not found: It costs a lot now",
        "Not in any cited passage: 77",
    ]
    assert re.fullmatch(USAGE, usage)


def test_a_shortened_question_is_reported_with_the_answer(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry [Source 1].")
    result = command(root, "ask", f"{QUESTION} {'pump ' * 10_000}")
    assert "The query has 50,029 characters: only its beginning, " in result.err
    assert len(prompt(provider, 0)) < 50_000


def test_an_answer_is_json_when_it_is_asked_for(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry [Source 1].")
    result = command(root, "ask", QUESTION, "--json", "--style", "persona")
    assert (result.json["answer"], result.json["found"]) == ("The pump runs dry [Source 1].", True)
    assert "few words" in prompt(provider, 0)


def test_a_partial_answer_is_reported_as_incomplete(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("one two three four five six seven eight nine ten eleven twelve thirteen")
    provider.fault("drop_in_body")
    result = command(root, "ask", QUESTION)
    assert result.err.startswith("The answer is incomplete: The answer broke off.")
    assert result.out.startswith("one two three four")


def test_an_answer_cannot_act_on_the_terminal(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("red \x1b[31m [bold]and[/bold] \x07 so")
    assert command(root, "ask", QUESTION).out.startswith("red [31m [bold]and[/bold]  so\n")


def test_a_guarded_answer_hides_personal_data(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("Ask ann@example.org <script>x</script>.")
    assert command(root, "ask", QUESTION, "--guard").out.startswith("Ask •••@•••••••.••• .\n")


@pytest.mark.parametrize(
    ("verdict", "told", "said"),
    [
        ('{"unsupported": [], "relevant": true, "confidence": 0.9}', "The pump runs dry.", ""),
        (
            '{"unsupported": ["It flies."], "relevant": true, "confidence": 0.9}',
            FALLBACK,
            "The judge withheld",
        ),
        ("Well.", NOT_JUDGED, "Not judged: The reply of the judge does not contain a valid"),
    ],
    ids=["passed", "blocked", "failed"],
)
def test_an_answer_can_be_judged(root: Path, provider: LoopbackProvider, verdict: str, told: str, said: str) -> None:
    provider.enqueue("The pump runs dry.", verdict)
    result = command(root, "ask", QUESTION, "--judge")
    assert result.out.startswith(f"{told}\n")
    *findings, usage = result.err.splitlines()
    assert " ".join(findings).startswith(said)
    assert bool(findings) == bool(said)
    assert ": 2 calls, " in usage


def test_reference_date_resolves_time_words(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("It runs dry.", "It runs dry.")
    command(root, "ask", "Did TS-999 occur last year?", "--reference-date", "2026-11-22")
    assert "last year (2025)?" in prompt(provider, 0)
    before = date.today()
    command(root, "chat", "--reference-date", "today", lines="Does TS-999 mean a dry pump this year?")
    years = {before.year, date.today().year}  # two, if it is New Year meanwhile
    assert any(f"this year ({year})?" in prompt(provider, 1) for year in years)
    wrong = command(root, "ask", QUESTION, "--reference-date", "soon")
    assert wrong.code == 1
    assert "must be `today`, or a date such as 2026-11-22" in wrong.err


def test_the_model_can_be_asked_for_the_intent(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("temporal", "The pump runs dry [Source 1].")
    result = command(root, "ask", "Pumps TS-999", "--llm-intents", "--json")
    assert result.json["retrieval"]["intent"] == "temporal"


def test_a_question_can_be_searched_by_its_intent(root: Path, provider: LoopbackProvider) -> None:
    assert command(root, "ask", "Thank you!", "--intents").out == f"{SMALL_TALK}\n"
    result = command(root, "chat", "--intents", "--follow-ups", "simple", "--json", lines="How do I repair TS-999?\n")
    assert result.json[0]["retrieval"]["intent"] == "procedural"
    assert len(provider.calls()) == 1


def test_timeouts_can_be_set(root: Path, provider: LoopbackProvider) -> None:
    result = command(root, "ask", QUESTION, "--first-token-timeout", "0")
    assert result.code == 1
    assert result.err.startswith("Error: Setting 'first_token_timeout' cannot be 0.0: ")
    assert "'call_timeout'" in command(root, "ask", QUESTION, "--call-timeout", "0").err
    provider.fault("hang")
    result = command(root, "ask", QUESTION, "--first-token-timeout", "0.2")
    assert result.code == 1
    assert "0.2 seconds" in result.err


@pytest.mark.parametrize("given", ["option", "environment", "setting"])
@pytest.mark.parametrize("name", ["ask", "chat"])
def test_a_call_that_is_not_streamed_has_a_timeout(
    given: str, name: str, tmp_path: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ProjectConfig.local(faiss=False, call_timeout=0.1 if given == "setting" else 99)
    ProjectManager(tmp_path).create("a", config).ingest([write_texts(tmp_path / "texts")])
    if given == "environment":
        monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CALL_TIMEOUT", "0.1")
    provider.fault("hang")
    arguments = [QUESTION] if name == "ask" else []
    arguments += ["--call-timeout", "0.1"] if given == "option" else []
    result = command(tmp_path, name, *arguments, "--json", lines=f"{QUESTION}\n")
    message = result.err if name == "ask" else result.json[0]["error"]
    assert "'openai:gpt-6-luna' did not answer within 0.1 seconds" in message


def test_a_model_that_fails_is_one_line(root: Path, provider: LoopbackProvider) -> None:
    provider.fault("invalid_key")
    result = command(root, "ask", QUESTION)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith("Error: The provider of 'openai:gpt-6-luna' refused the API key")


def test_a_conversation_answers_line_by_line_and_is_kept(
    root: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    provider.enqueue("The pump runs dry [Source 1].", "Because of V2 [Source 1].", "Nothing more.")
    file = tmp_path / "talk.json"
    result = command(root, "chat", "--history", file, lines=f"{QUESTION}\n\nAnd why does it?\n/quit\nnever\n")
    assert result.code == 0
    assert result.out.startswith("The pump runs dry [Source 1].\n[Source 1] manual.txt\nBecause of V2 [Source 1].\n")
    assert QUESTION in prompt(provider, 1)
    assert [row["content"] for row in json.loads(file.read_text())][::2] == [QUESTION, "And why does it?"]
    command(root, "chat", "--history", file, lines="And then?\n")
    assert "Because of V2" in prompt(provider, 2)


def test_a_missing_folder_for_the_history_is_an_error_before_any_call(
    root: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    result = command(root, "chat", "--history", tmp_path / "absent" / "talk.json", lines=f"{QUESTION}\n")
    assert (result.code, result.out) == (1, "")
    assert result.err.endswith("absent is not a folder: create it, or choose another one for talk.json.\n")
    assert provider.calls() == []


def test_a_conversation_can_be_reset_and_survives_an_error(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry.")
    provider.fault("invalid_key", after=1)
    result = command(root, "chat", "--json", lines=f"{QUESTION}\n{QUESTION}\n/reset\n{QUESTION}\n")
    assert [turn.get("error", "")[:12] for turn in result.json] == ["", "The provider", ""]
    assert "The pump runs dry." not in prompt(provider, -1).partition("Sources:")[0]


def test_a_repeated_question_is_answered_from_the_cache_which_is_said(
    tmp_path: Path, provider: LoopbackProvider
) -> None:
    ProjectManager(tmp_path).create("a", ProjectConfig.local()).ingest([write_texts(tmp_path / "texts")])
    provider.enqueue("The pump runs dry [Source 1].")
    first = command(tmp_path, "ask", QUESTION)
    second = command(tmp_path, "ask", QUESTION)
    third = command(tmp_path, "chat", lines=f"{QUESTION}\n")
    assert first.out == second.out == third.out
    *notes, usage = first.err.splitlines()
    assert re.fullmatch(USAGE, usage)
    assert second.err.splitlines() == [*notes, "From the cache: no tokens sent for this answer."]
    assert second.err in third.err
    assert command(tmp_path, "ask", QUESTION, "--json").json["from_cache"]
    assert len(provider.calls()) == 1
    assert not command(tmp_path, "ask", QUESTION, "--json", "--no-cache").json["from_cache"]


@pytest.mark.parametrize("line", ["exit", "quit", "Quit", ":q", "/exit", "/quit"])
def test_a_chat_ends_without_a_call(root: Path, provider: LoopbackProvider, line: str) -> None:
    result = command(root, "chat", lines=f"{line}\n{QUESTION}\n")
    assert (result.code, result.out, provider.calls()) == (0, "", [])


def test_commands_of_a_chat_are_listed_and_neither_they_nor_thanks_cost_a_call(
    root: Path, provider: LoopbackProvider
) -> None:
    result = command(root, "chat", lines="/help\n/hlep\nthanks!\n")
    assert result.out == f"{SMALL_TALK}\n"
    helped, unknown = result.err.splitlines()
    assert helped.startswith("/reset clears the conversation; ")
    assert unknown == f"There is no command /hlep. {helped}"
    assert provider.calls() == []


def test_a_style_is_added_to_the_rules_and_a_system_prompt_replaces_them(
    root: Path, provider: LoopbackProvider
) -> None:
    command(root, "ask", QUESTION, "--style", "Answer in rhymes.")
    command(root, "ask", QUESTION, "--system-prompt", "Answer in rhymes.")
    command(root, "chat", "--system-prompt", "Answer in rhymes.", lines=f"{QUESTION}\n")
    added, *replaced = (call.body["messages"][0]["content"] for call in provider.calls())
    assert added.startswith("Answer the question completely")
    assert added.endswith("\n\nAnswer in rhymes.")
    assert replaced == ["Answer in rhymes."] * 2


def test_without_an_llm_a_conversation_shows_passages(root: Path) -> None:
    result = command(root, "chat", lines=f"{QUESTION}\n")
    assert result.code == 0
    assert "Showing the best passages instead." in result.err
    assert result.out.splitlines()[2] == " 1. reports/manual.txt"


@given(st.text(alphabet="a1.-` \n", max_size=40), st.randoms())
def test_blocks_of_a_streamed_answer_do_not_depend_on_its_pieces_and_lose_no_text(text: str, random: Random) -> None:
    cuts = sorted(random.randint(0, len(text)) for _ in range(3))
    blocks, rest = [], ""
    for start, end in pairwise([0, *cuts, len(text)]):
        complete, rest = split_blocks(rest + text[start:end])
        blocks += complete
    assert (blocks, rest) == split_blocks(text)
    assert "\n".join([*blocks, rest]).split() == text.split()


def test_an_answer_is_rendered_on_a_terminal_and_unchanged_for_other_programs(
    root: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "**Dry**: the `pump` stops [Source 1].\n\n1. Close it.\n\n2. Wait."
    provider.enqueue(text, text)
    assert command(root, "ask", QUESTION).out.startswith(f"{text}\n")
    shown = io.StringIO()
    monkeypatch.setattr(answer, "out", Console(file=shown, force_terminal=True, width=60, color_system=None))
    command(root, "ask", QUESTION)
    assert "**" not in shown.getvalue()
    assert "`" not in shown.getvalue()
    assert [line.strip() for line in shown.getvalue().splitlines() if line.strip().startswith(("1 ", "2 "))][-2:] == [
        "1 Close it.",
        "2 Wait.",
    ]


def test_a_withheld_answer_has_no_sources(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("It flies [Source 1].", '{"unsupported": ["It flies."], "relevant": true, "confidence": 1}')
    assert command(root, "ask", QUESTION, "--judge").out == f"{FALLBACK}\n"


def test_a_reset_conversation_is_removed_from_its_file(root: Path, provider: LoopbackProvider, tmp_path: Path) -> None:
    provider.enqueue("It runs dry.")
    talk = tmp_path / "talk.json"
    result = command(root, "chat", "--history", talk, lines=f"{QUESTION}\n/reset\n/quit\n")
    assert "The conversation was cleared." in result.err
    assert json.loads(talk.read_text()) == []


def test_answers_can_be_evaluated(root: Path, provider: LoopbackProvider, tmp_path: Path) -> None:
    questions = tmp_path / "qa.jsonl"
    questions.write_text(f'{{"question": "{QUESTION}", "answers": ["the pump runs dry"]}}\n', encoding="utf-8")
    provider.enqueue("The pump runs dry [Source 1].")
    report = tmp_path / "out.csv"
    result = command(root, "evaluate", str(questions), "--answers", "--yes", "--report", str(report))
    *figures, usage = result.out.splitlines()
    assert figures == [
        "exact match: 100.0 per cent",
        "F1: 100.0 per cent",
        "1 question: 0 not found, 0 failed, 0 without the evidence among the passages",
    ]
    assert re.fullmatch(USAGE, usage)
    assert "gpt-6-luna" in report.read_text(encoding="utf-8")
    refused = command(root, "evaluate", str(questions), "--answers", "--compare", "none,structural")
    assert refused.code == 1
    assert "omit --compare and --sweep" in refused.err
    questions.write_text("{}\n", encoding="utf-8")
    assert 'qa.jsonl, line 1: has no "question"' in command(root, "evaluate", str(questions), "--answers").err


def test_wrong_answers_of_an_evaluation_are_shown_beside_the_expected_ones_with_a_hint(
    root: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    questions = tmp_path / "qa.jsonl"
    questions.write_text(f'{{"question": "{QUESTION}", "answers": ["runs dry"]}}\n', encoding="utf-8")
    long = "According to the manual, the error means that the pump of the station runs dry [Source 1]."
    provider.enqueue(long)
    result = command(root, "evaluate", str(questions), "--answers", "--yes")
    assert result.out.endswith(f"{QUESTION}\n  expected: runs dry\n  answered: {long}\n")
    assert "much longer than the expected ones" in result.err
    assert "style=persona" in result.err


def test_ask_and_cost_print_the_tokens_and_dollars_of_answers(
    root: Path, provider: LoopbackProvider, tmp_path: Path
) -> None:
    provider.enqueue("The pump runs dry [Source 1].")
    usage = command(root, "ask", QUESTION, "--llm", "openai:gpt-4o-mini").err.splitlines()[-1]
    assert re.fullmatch(USAGE, usage)
    costs = command(root, "cost").out
    assert re.search(r"answers +\$[\d.]+  openai:gpt-4o-mini; \d+ calls?\n", costs)


def test_a_rewritten_question_is_reported_as_the_one_that_was_searched(root: Path, provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry.", "What does error TS-104 mean?", "The sensor is not calibrated.")
    lines = f"{QUESTION}\nAnd TS-104?\n"
    result = command(root, "chat", "--follow-ups", "condense", "--json", lines=lines)
    assert [turn["retrieval"]["searched"] for turn in result.json] == [QUESTION, "What does error TS-104 mean?"]
    provider.enqueue("The pump runs dry.", "What does error TS-104 mean?", "The sensor is not calibrated.")
    shown = command(root, "chat", "--follow-ups", "condense", lines=lines)
    assert "Searched for: What does error TS-104 mean?\n" in shown.err
