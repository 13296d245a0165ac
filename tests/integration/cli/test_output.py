"""What commands print: on a terminal, for other programs, and of text that wants to act on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from llama_index.core.schema import Document
from rich.cells import cell_len

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run

Screen = Callable[..., list[str]]

HOSTILE = "[red]alert[/red] [/] :key: C:\\new \x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u200b end"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]")


@pytest.fixture
def hostile(root: Path, tmp_path: Path) -> Project:
    """A project with a document whose name and text want to act on the terminal."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "[bold]a[_b] \x1b[31m:key:.txt").write_text(
        f"Beginning. {HOSTILE}\n\n日本語のテキスト。", encoding="utf-8"
    )
    (folder / "empty \x1b[31m[i].txt").write_text("")
    project = ProjectManager(root).create("a", ProjectConfig.local())
    result = run("ingest", "a", folder, "--quiet")
    assert r"empty \x1b[31m[i].txt: is empty" in result.err
    assert not CONTROLS.search(result.out + result.err)
    return project


def test_names_and_texts_of_documents_are_printed_without_control_characters(hostile: Project) -> None:
    for arguments in (["search", "a", "beginning"], ["documents", "a"], ["search", "a", HOSTILE.replace("\0", "")]):
        result = run(*arguments)
        assert result.code == 0
        assert r"[bold]a[_b] \x1b[31m:key:.txt" in result.out
        assert not CONTROLS.search(result.out + result.err)
    shown = run("search", "a", "beginning").out
    assert "[red]alert[/red] [/] :key: C:\\new " in shown
    assert "日本語のテキスト" in shown


def test_json_output_has_the_exact_text_with_control_characters_escaped(hostile: Project) -> None:
    result = run("search", "a", "beginning", "--json")
    assert not CONTROLS.search(result.out)
    assert "日本語" in result.out
    (chunk,) = result.json["results"]
    assert chunk["text"] == hostile.retrieve("beginning")[0].text
    assert "\x1b]0;owned\x07" in chunk["text"]
    assert "\u202e" in chunk["text"]


def test_on_a_terminal_a_passage_is_wrapped_at_words_and_indented(hostile: Project, screen: Screen) -> None:
    columns = 60
    long = "The pump was inspected and found in good order by the engineers of the shipyard. " * 3
    file = hostile.directory.parent.parent / "long.txt"
    file.write_text(f"Unique marker. {long}", encoding="utf-8")
    hostile.ingest([file])
    contexts = [chunk.context or "" for chunk in hostile.retrieve("Unique marker, beginning")]
    lines = screen(columns, "search", "a", "Unique marker, beginning", "-n", "20")
    assert all(cell_len(line) <= columns for line in lines)
    passage = [line for line in lines if line.startswith("    ") and ("pump" in line or "shipyard" in line)]
    assert len(passage) > 1
    assert {word for line in passage for word in line.split()} <= set(f"Unique marker. {long} … {contexts}".split())
    assert any("[red]alert[/red]" in line for line in lines)
    assert not CONTROLS.search("".join(lines))


def test_five_results_are_shown_and_how_to_see_all(root: Path, screen: Screen) -> None:
    project = ProjectManager(root).create("many", ProjectConfig.local(indexes="lexical", mode="lexical"))
    project.ingest([Document(text=f"Pump {number} runs. " * 20, doc_id=f"pump {number}") for number in range(20)])

    def ranks(lines: Sequence[str]) -> list[str]:
        return [line.split(".")[0].strip() for line in lines if re.match(r" ?\d+\. pump", line)]

    everything = [str(rank) for rank in range(1, 21)]
    for lines in (screen(80, "search", "many", "pump"), run("search", "many", "pump").out.splitlines()):
        assert ranks(lines) == everything[:5]
        assert "15 more: -n 20 shows all" in lines
    for option in ("-n", "-k", "--top-k"):
        lines = screen(80, "search", "many", "pump", option, "20")
        assert ranks(lines) == everything
        assert not any("more:" in line for line in lines)


def test_results_that_are_less_likely_are_folded_away(root: Path) -> None:
    project = ProjectManager(root).create("a", ProjectConfig.local(context="none"))
    texts = [f"Chapter {number} describes valves, filters and seals of kind {number}." for number in range(19)]
    project.ingest([Document(text=text, doc_id=f"{number}") for number, text in enumerate(texts)])
    project.ingest([Document(text="Error TS-999 means that the pump runs dry.", doc_id="manual")])
    question = "What does error TS-999 mean?"
    lines = run("search", "a", question).out.splitlines()
    assert lines[0].startswith("1 result. High confidence")
    assert lines[-1] == "19 less likely: -n 20 shows all"
    whole = run("search", "a", question, "-n", "20").out.splitlines()
    assert whole.index("Less likely") > next(at for at, line in enumerate(whole) if line.startswith(" 1. manual"))
    assert sum(bool(re.match(r" ?\d+\. ", line)) for line in whole) == 20
    rows = json.loads(run("search", "a", question, "--json").out)
    assert (len(rows["results"]), len(rows["folded"])) == (1, 19)

    nothing = run("search", "a", "xyzzyqq").out.splitlines()
    assert nothing[0] == "Nothing found: no passage is likely to answer this. No document mentions “xyzzyqq”."
    assert nothing[-1] == "20 less likely: -n 20 shows all"


def test_a_sentence_of_two_overlapping_chunks_is_shown_once(root: Path) -> None:
    config = ProjectConfig.local(context="none", chunk_size=60, chunk_overlap=30)
    project = ProjectManager(root).create("a", config)
    before = "".join(f"Nothing of note was seen on day {number}. " for number in range(5))
    after = "".join(f" All was quiet on day {number}." for number in range(9))
    sentence = "Error TS-999 means that it runs dry."
    project.ingest([Document(text=f"{before}The pump was built in spring. {sentence}{after}", doc_id="log")])
    marks = [hit.spotlight.text for hit in project.retrieve("TS-999") if hit.spotlight]
    assert marks.count(sentence) == 2
    assert run("search", "a", "TS-999").out.count(sentence) == 1


def test_why_not_shows_the_rank_of_an_expected_document_and_what_it_lacks(root: Path) -> None:
    project = ProjectManager(root).create("a", ProjectConfig.local(context="none"))
    names = ("pumps.txt", "valves.txt", "leave.txt")
    texts = ("The pump of the ferry runs dry.", "The valve of the pump is closed.", "Thirty days of leave.")
    documents = [
        Document(text=text, doc_id=f"manuals/{name}", metadata={"file_name": name})
        for name, text in zip(names, texts, strict=True)
    ]
    project.ingest(documents)
    standing = project.why_not("Which pump runs dry on the Zembla?", "valves.txt", top_k=1)
    assert standing.rank == 2
    assert [str(word) for word in standing.unknown_words] == ["Zembla"]
    explanation = standing.explanation
    assert explanation is not None
    assert set(explanation.missing) >= {"run", "dri"}
    assert "below result 1" in (explanation.why_not or "")
    assert project.why_not("Which pump runs dry?", "manuals/pumps.txt").rank == 1
    assert project.why_not("Which pump runs dry?", "manuals/*").rank == 1  # the best of several documents

    lines = run("search", "a", "Which pump runs dry?", "--why-not", "valves.txt", "-n", "1").out.splitlines()
    assert lines[0] == "Rank 2 of 3, not among the first 1."
    assert any(line.strip().startswith("why not: ") for line in lines)
    assert run("search", "a", "pump", "--why-not", "valve.txt").err == (
        "Error: No document is named 'valve.txt'; did you mean 'valves.txt'?\n"
    )


def test_a_passage_begins_near_the_rarest_word_of_the_question_and_explains_its_score(root: Path) -> None:
    text = "The pump was inspected. " * 12 + "Then Ukraine was named. " + "The pump was inspected again. " * 20
    project = ProjectManager(root).create("a", ProjectConfig.local(context="none"))
    project.ingest([Document(text=text, doc_id="long"), Document(text="The pump was inspected.", doc_id="short")])
    lines = run("search", "a", "Was the pump inspected in Ukraine?", "--explain", "-k", "1").out.splitlines()
    assert lines[3].strip().startswith("… Then Ukraine was named. The pump")
    assert len(lines[3].strip()) <= 320
    assert any(line.endswith("in the text: pump, inspect, ukrain") for line in lines)
    nothing = run("search", "a", "zebra", "--mode", "lexical").out
    assert nothing == "No passage was found. No document mentions “zebra”.\n\n"


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_documents_are_listed_with_whole_ids_and_totals(root: Path, screen: Screen, columns: int) -> None:
    long, short = f"{'long ' * 8}name.txt", "short.txt"
    project = ProjectManager(root).create("a", ProjectConfig.local(indexes="lexical"))
    project.ingest([Document(text=f"The pump {name[0]} runs.", doc_id=name) for name in (long, short)])
    lines = [line for line in screen(columns, "documents", "a") if line]
    assert lines[-1] == "2 documents: 2 chunks · 10 tokens"
    facts = "1 chunk · 5 tokens"
    assert lines[:-1] == [f"{long}  {facts}", f"{short}  {facts}"]
    assert run("documents", "a", "short*").out == f"{short}  {facts}\n\n1 document: {facts}\n"
