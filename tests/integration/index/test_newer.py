"""Dates found in documents, and documents that newer ones supersede: 100 files of which the answer is known."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, timedelta

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.analysis import MONTH_NAMES
from llama_index_contextual.index.dates import document_date, similarity, sketch_of
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

TEXT = """leave travel pump valve meter tariff invoice delivery contract notice period approval manager employee budget
station water pressure repair supplier warranty report quarter revenue cost safety training helmet audit record access
password device backup letter claim refund customer order price discount region plant filter schedule"""
WORDS = TEXT.split()
NAMES = """travel policy|leave policy|purchase rules|password guideline|pump manual|tariff sheet|safety handbook
|audit plan|warranty terms|delivery contract|refund rules|training concept|backup plan|access rules|station guide"""
TOPICS = NAMES.replace("\n", "").split("|")


def sentences(chance: random.Random, number: int) -> list[str]:
    return [" ".join(chance.choices(WORDS, k=chance.randint(9, 16))).capitalize() + "." for _ in range(number)]


def revised(chance: random.Random, lines: list[str]) -> list[str]:
    """Return the sentences of a text, of which a tenth are replaced and one is added."""
    kept = [line if chance.random() > 0.1 else sentences(chance, 1)[0] for line in lines]
    return [*kept, *sentences(chance, 1)]


def words_of(day: date) -> str:
    return f"{day.day} {MONTH_NAMES[day.month - 1]} {day.year}"


class Files:
    """The files: their texts, the date of each one, and for superseded ones the newest file."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.texts: dict[str, str] = {}
        self.dates: dict[str, str] = {}
        self.newer: dict[str, str] = {}

    def add(self, name: str, title: str, lines: list[str], *, header: str = "", day: date | None = None) -> None:
        body = "\n\n".join(" ".join(lines[at : at + 5]) for at in range(0, len(lines), 5))
        self.texts[name] = "\n\n".join(filter(None, [f"# {title}", header, body])) + "\n"
        if day is not None:
            self.dates[name] = day.isoformat()

    def day(self) -> date:
        return date(2021, 1, 1) + timedelta(days=self.chance.randint(0, 1_400))

    def fill(self) -> None:
        for at, topic in enumerate(TOPICS):
            lines = sentences(self.chance, 40)
            slug, title, day = topic.replace(" ", "-"), topic.capitalize(), self.day()
            later = day + timedelta(days=self.chance.randint(30, 300))
            changed = revised(self.chance, lines)
            names = [
                (f"{slug}.md", f"{slug}-v2.md"),
                (f"{slug}_v1.2.md", f"{slug}_v1.10.md"),
                (f"{slug} draft.md", f"{slug} final.md"),
                (f"{slug}-{day}.md", f"{slug}-{later}.md"),
                (f"a/{slug}.md", f"b/{slug} new edition.md"),
            ][at % 5]
            headers = [f"Last updated: {words_of(day)}", f"Last updated: {words_of(later)}"]
            if at % 5 in (1, 2):
                headers = ["", ""]
            self.add(names[0], title, lines, header=headers[0], day=day if headers[0] else None)
            self.add(names[1], title, changed, header=headers[1], day=later if headers[1] else None)
            self.newer[names[0]] = names[1]
        for kind in ("Minutes of the board", "Monthly report", "Invoice", "Delivery note"):  # one title, other texts
            for month in range(1, 11):
                day = date(2024, month, 3 + month)
                header = [f"Date: {day:%d.%m.%Y}", f"Halden, {words_of(day)}", f"Dated {words_of(day)}"][month % 3]
                lines = [f"This {kind.lower()} is confidential.", *sentences(self.chance, 30)]
                self.add(f"{kind.lower().replace(' ', '-')}-{day:%Y-%m}.md", kind, lines, header=header, day=day)
        for number in range(30):  # texts of their own; a date inside the text is not that of the document
            lines = sentences(self.chance, 20)
            lines.insert(7, f"The contract of {words_of(self.day())} ends.")
            self.add(f"memo {number} {self.chance.choice(WORDS)}.md", f"Memo {number} about {lines[0][:20]}", lines)


@pytest.fixture(scope="module", params=[1, 2])
def files(request: pytest.FixtureRequest) -> Files:
    one = Files(request.param)
    one.fill()
    assert len(one.texts) == 100
    return one


@pytest.fixture(scope="module")
def project(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("newer")
    for name, text in files.texts.items():
        path = folder / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    project = ProjectManager(folder / "knowledge").create("p", ProjectConfig.local(indexes="lexical"))
    project.ingest([folder / "all"])
    return project


def test_of_100_files_at_least_95_are_right_and_none_is_wrongly_marked(files: Files, project: Project) -> None:
    marked = {
        old.removeprefix("all/"): new.removeprefix("all/")
        for old, new in project.live_version.docstore.superseded.items()
    }
    wrong = {name: new for name, new in marked.items() if files.newer.get(name) != new}
    missed = set(files.newer) - set(marked)
    assert not wrong
    assert len(files.texts) - len(missed) >= 95, missed


def test_dates_are_those_in_the_documents(files: Files, project: Project) -> None:
    found = {record.doc_id.removeprefix("all/"): record.date for record in project.documents()}
    wrong = {name: day for name, day in found.items() if day != files.dates.get(name, "")}
    assert len(wrong) <= 5, wrong
    assert all(record.file_date for record in project.documents())


def test_hits_of_superseded_documents_say_so_and_nothing_is_hidden(files: Files, project: Project) -> None:
    old, new = next(iter(files.newer.items()))
    names = {f"all/{old}", f"all/{new}"}
    question = " ".join(files.texts[old].split()[-12:])
    response = project.retrieve(question, top_k=50)
    hits = {hit.source.doc_id: hit for hit in response if hit.source.doc_id in names}
    assert set(hits) == names
    assert (hits[f"all/{old}"].newer, hits[f"all/{new}"].newer) == (f"all/{new}", None)
    assert f"(newer: {new})" in str(response)
    assert next(hit for hit in response.to_dict()["results"] if "newer" in hit)["newer"]
    newest = project.retrieve(question, top_k=50, filters={"newest": True})
    assert f"all/{old}" not in {hit.source.doc_id for hit in newest}
    others = project.retrieve(question, top_k=50, filters="newest=false")
    assert {hit.source.doc_id for hit in others} <= {f"all/{name}" for name in files.newer}
    assert "superseded by doc_id" in str(project.document_tools().search(question, top_k=50))


@pytest.mark.parametrize(
    ("metadata", "title", "opening", "file_name", "expected"),
    [
        ({"mail_date": "2025-02-21T10:20:00+00:00"}, "Minutes of 3 May 2020", "", "a.eml", "2025-02-21"),
        ({"updated": "soon"}, "Minutes of 3 May 2020", "Dated 1 June 2021", "a.md", "2020-05-03"),
        ({}, "From 1 May to 2 May 2020 and 3 June 2021", "", "a.md", ""),
        ({}, "", "Stand: 31.12.2024", "a.md", "2024-12-31"),
        ({}, "", "Version of 3/4/2025", "a.md", ""),
        ({}, "", "Issued: 13/4/2025\n\nRevised: May 2, 2025", "a.md", "2025-05-02"),
        ({}, "", "The lease of 1 May 2020 ends.", "lease-20210304.pdf", "2021-03-04"),
        ({}, "", "Date: 31 February 2024", "a.md", ""),
        ({}, "", "", "", ""),
    ],
)
def test_a_date_is_taken_from_the_first_place_that_names_one(
    metadata: Mapping[str, str], title: str, opening: str, file_name: str, expected: str
) -> None:
    assert document_date(metadata, title, opening, file_name) == expected


def test_similarity_is_near_the_share_of_equal_triples() -> None:
    words = [f"word{n}" for n in range(2_000)]
    half = [*words[:1_000], *(f"other{n}" for n in range(1_000))]
    assert similarity(sketch_of(" ".join(words)), sketch_of(" ".join(words))) == 1
    assert 0.15 < similarity(sketch_of(" ".join(words)), sketch_of(" ".join(half))) < 0.55  # a third
    assert similarity(sketch_of("a b"), sketch_of("a b")) == 0
