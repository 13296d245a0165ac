"""The view that asks an LLM: streams, checks, errors, and the way to the passages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_index_contextual.evaluation.questions import load_questions
from llama_index_contextual.evaluation.run import evaluate
from llama_index_contextual.project.manager import ProjectManager
from tests.slow.browser.conftest import GatedLLM, run_axe
from tests.slow.browser.harness import Pages, Served, Watch, follow, overflow
from tests.support.server import LoopbackProvider

pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
from playwright.sync_api import Locator, Page, expect

QUESTION = "How long must the pressure booster stand still after an emergency stop?"
ANSWER = (
    "The unit “has to stand still for 10 minutes” [Source 1], and **not** 77. It “costs a lot of money” [Source 1]."
)


@pytest.fixture(autouse=True)
def _fresh(provider: LoopbackProvider, gated: GatedLLM) -> Iterator[None]:
    provider.reset()
    gated.reset()
    yield
    provider.reset()


def ask(page: Page, served: Served, project: str = "examples", question: str = QUESTION) -> Locator:
    """Ask a question, and return the place of the finished answer."""
    page.goto(f"{served.url}/p/{project}/ask")
    page.get_by_role("textbox", name="Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    return page.get_by_role("article").last


def is_over(page: Page) -> None:
    """Wait until the view waits for the next question."""
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()


# ---- a finished answer -----------------------------------------------------------------------------------------------


def test_a_citation_opens_its_passage_and_going_back_costs_nothing(
    page: Page, served: Served, provider: LoopbackProvider
) -> None:
    provider.enqueue(ANSWER)
    answer = ask(page, served)
    expect(answer).to_be_visible()
    is_over(page)
    follow(answer.get_by_role("link", name="Source 1").first)
    expect(page).to_have_url(re.compile("/p/examples/passage/"))
    expect(page.get_by_role("main")).to_contain_text("stand still for 10 minutes")
    page.go_back()
    expect(page.get_by_role("article")).to_contain_text("stand still for 10 minutes")
    page.reload()
    expect(page.get_by_role("article")).to_contain_text("stand still for 10 minutes")
    assert len(provider.chat_calls) == 1


def test_a_verified_quotation_leads_to_the_chunk_that_contains_it(
    page: Page, served: Served, provider: LoopbackProvider
) -> None:
    provider.enqueue("“Leakage fell to 16.8 % of the water put into supply” [Source 1] [Source 2] [Source 3].")
    answer = ask(page, served, question="What was the leakage of Haldermoor in the first quarter of 2024?")
    expect(answer).to_be_visible()
    is_over(page)
    follow(answer.get_by_role("link", name="verified"))
    expect(page).to_have_url(re.compile("/p/examples/passage/"))
    assert page.locator(".mark-line").count() > 0
    expect(page.locator("details pre.text")).to_contain_text("Leakage fell to 16.8 %")


def test_without_javascript_the_form_shows_the_finished_answer_or_the_error(
    pages: Pages, served: Served, provider: LoopbackProvider, watch: Watch
) -> None:
    provider.enqueue(ANSWER)
    page = pages.open(java_script_enabled=False)
    answer = ask(page, served)
    expect(answer.locator(".check-label")).to_have_text(["verified", "unsupported", "not found"])
    follow(answer.get_by_role("link", name="Source 1").first)
    expect(page.get_by_role("main")).to_contain_text("stand still for 10 minutes")
    page.go_back()
    expect(page.get_by_role("article")).to_contain_text("stand still for 10 minutes")
    assert len(provider.chat_calls) == 1
    watch.expect("503")
    provider.fault("invalid_key")
    ask(page, served)
    expect(page.get_by_role("alert")).to_contain_text("A model is not available")
    expect(page.get_by_role("textbox", name="Question")).to_have_value(QUESTION)


# ---- conversations ---------------------------------------------------------------------------------------------------

FOLLOW_UP = "And what about the capacitors?"


def ask_further(page: Page, question: str = FOLLOW_UP) -> None:
    is_over(page)
    page.get_by_role("textbox", name="Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


def test_the_conversation_stays_in_its_tab(pages: Pages, served: Served, provider: LoopbackProvider) -> None:
    provider.enqueue(ANSWER)
    page = pages.open()
    expect(ask(page, served)).to_be_visible()
    is_over(page)
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_role("link", name="Ask", exact=True).click()
    expect(page.get_by_role("article")).to_contain_text("stand still for 10 minutes")
    expect(pages.open("/p/examples/ask").get_by_role("article")).to_have_count(0)
    provider.enqueue("They discharge slowly [Source 1].")
    ask_further(page)
    expect(page.get_by_role("article")).to_have_count(2)
    assert QUESTION in str(provider.chat_calls[-1].body)


def test_marked_passages_are_saved_as_a_file_that_evaluate_reads(
    page: Page, served: Served, provider: LoopbackProvider, root: Path, tmp_path: Path
) -> None:
    provider.enqueue(ANSWER, "At once [Source 1].")
    answer = ask(page, served)
    button = answer.get_by_role("button", name="This answers it").first
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    ask_further(page, "When does it start?")
    expect(page.get_by_role("article")).to_have_count(2)
    other = page.get_by_role("article").last.get_by_role("button", name="This answers it").first
    other.click()
    expect(page.get_by_role("region", name="Collected questions")).to_contain_text("2 questions with answers")
    other.click()  # once more: it does not answer it after all
    page.goto(f"{served.url}/p/manual/ask?q=When+may+it+start")
    expect(page.get_by_role("region", name="Collected questions")).to_be_hidden()  # those of another project
    page.goto(f"{served.url}/p/examples/ask")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download questions").click()
    download.value.save_as(tmp_path / "questions.jsonl")
    (question,) = load_questions(tmp_path / "questions.jsonl")
    project = ProjectManager(root).load("examples")
    (evidence,) = question.evidence
    assert (question.text, evidence.file) == (QUESTION, "station-manual.md")
    assert project.read("station-manual.md", *evidence.span) == "has to stand still for 10 minutes"
    assert evaluate(project, [question]).mean("recall@20") == 1.0


# ---- streams ---------------------------------------------------------------------------------------------------------

# A shorter opening is held back, because it may be reasoning.
OPENING = "The manual describes the steps after an emergency stop in a section of its own. " * 3


def test_the_answer_grows_while_it_is_written(page: Page, served: Served, gated: GatedLLM) -> None:
    answer = ask(page, served, "slow")
    expect(page.locator("#status")).to_have_text(re.compile(r"Reading \d+ passage"))
    live = page.get_by_role("region", name="Answer being written")
    expect(live.get_by_role("link").first).to_be_visible()
    gated.release(OPENING, "The unit stands still ", "for **10 min")
    expect(live).to_contain_text("The unit stands still for **10 min")
    expect(page.locator("#status")).to_have_text("Writing …")
    expect(answer).to_have_count(0)
    page.get_by_role("textbox", name="Question").press("Enter")  # no second question is sent meanwhile
    gated.release("utes** [Source 1].", end=True)
    expect(answer).to_contain_text("for 10 minutes 1.")
    expect(live).to_be_hidden()
    expect(answer.locator("strong", has_text="10 minutes")).to_be_visible()
    is_over(page)


@pytest.mark.parametrize("text", ["", f"{OPENING}Half of "])
def test_stop_ends_the_call_of_the_model(page: Page, served: Served, gated: GatedLLM, text: str) -> None:
    ask(page, served, "slow")
    expect(page.locator("#status")).to_have_text(re.compile(r"Reading \d+ passage"))
    if text:
        gated.release(text)
        expect(page.locator("#live-text")).to_have_text(text.strip())
    assert gated.wait_until_read()  # the passages are shown before the model is called
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped. What is shown was not checked.")
    assert gated.wait_until_closed()
    is_over(page)
    assert "answer=" not in page.url


@pytest.mark.parametrize("has_javascript", [True, False])
def test_leaving_the_page_ends_the_call_of_the_model(
    pages: Pages, served: Served, gated: GatedLLM, caplog: pytest.LogCaptureFixture, has_javascript: bool
) -> None:
    page = pages.open(f"/p/slow/ask?q={QUESTION}", java_script_enabled=has_javascript)
    page.get_by_role("button", name="Ask", exact=True).click(no_wait_after=True)
    gated.release("Half of ")
    assert gated.wait_until_read()
    page.goto("about:blank")
    assert gated.wait_until_closed()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in errors if record.name != "asyncio"] == []  # it is shared with other tests


# ---- problems --------------------------------------------------------------------------------------------------------


def test_an_error_of_the_provider_is_shown_in_words_and_the_next_question_is_answered(
    page: Page, served: Served, provider: LoopbackProvider
) -> None:
    provider.fault("insufficient_quota", times=None)
    ask(page, served)
    expect(page.get_by_role("alert")).to_contain_text("A model is not available")
    expect(page.get_by_role("alert")).to_contain_text("quota")
    is_over(page)
    provider.clear_faults()
    provider.enqueue("The unit has to stand still for 10 minutes before it may be started again [Source 1]. " * 6)
    provider.fault("drop_in_body")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("article")).to_contain_text("The answer is incomplete: The answer broke off.")
    expect(page.get_by_role("article")).to_contain_text("has to stand still")
    expect(page.get_by_role("alert")).to_have_count(0)


# ---- display ---------------------------------------------------------------------------------------------------------

LONG = f"""{ANSWER}

> Nobody works alone on an open panel. [Source 1]

| Reading | Value | Note |{" Column |" * 9}
|---|---|---|{"---|" * 9}
| Outlet pressure | 4.5 to 6.0 bar | {"averylongwordwithoutanyspaces" * 4} |{" bar |" * 9}

1. Select local [Source 1], then `{"code_without_spaces_" * 6}`.
"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("light", 390), ("dark", 390)])
def test_the_view_fits_and_is_accessible(
    pages: Pages, served: Served, provider: LoopbackProvider, scheme: str, width: int
) -> None:
    provider.enqueue(LONG)
    page = pages.open(color_scheme=scheme, viewport={"width": width, "height": 844})
    expect(ask(page, served)).to_contain_text("Nobody works alone")
    is_over(page)
    page.get_by_text("Options").click()
    assert overflow(page) == []
    assert run_axe(page) == []
