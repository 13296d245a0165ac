"""Metadata keys of this package, their visibility, and maps of pages and headings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.metadata import (
    DocumentMap,
    Heading,
    Place,
    Table,
    excluded_embed_keys,
    excluded_llm_keys,
    joint_places,
    joint_section,
    source_line,
)

MAP = DocumentMap(
    page_starts=(0, 100, 200),
    page_labels=("i", "ii", "1"),
    headings=(
        Heading(10, 1, "1 Scope"),
        Heading(50, 2, "1.1 Terms"),
        Heading(120, 2, "1.2 Place"),
        Heading(150, 1, "2 Results"),
        Heading(180, 3, "Deep"),
    ),
)


@pytest.mark.parametrize(
    ("offset", "page", "label", "section"),
    [
        (0, 1, "i", None),
        (10, 1, "i", "1 Scope"),
        (99, 1, "i", "1 Scope > 1.1 Terms"),
        (100, 2, "ii", "1 Scope > 1.1 Terms"),
        (120, 2, "ii", "1 Scope > 1.2 Place"),
        (150, 2, "ii", "2 Results"),
        (9999, 3, "1", "2 Results > Deep"),
    ],
)
def test_an_offset_has_a_page_a_label_and_a_section(offset: int, page: int, label: str, section: str | None) -> None:
    assert (MAP.page(offset), MAP.page_label(offset), MAP.section(offset)) == (page, label, section)


def test_a_new_place_begins_with_each_page_and_each_heading() -> None:
    assert MAP.places(60, 150) == [
        Place(60, 1, "i", "1 Scope > 1.1 Terms"),
        Place(100, 2, "ii", "1 Scope > 1.1 Terms"),
        Place(120, 2, "ii", "1 Scope > 1.2 Place"),
    ]
    assert MAP.places(120, 121) == [Place(120, 2, "ii", "1 Scope > 1.2 Place")]
    assert DocumentMap().places(3, 9) == [Place(3, None, None, None)]


@given(st.integers(0, 260), st.integers(1, 200))
def test_places_name_the_page_and_section_of_every_offset(start: int, length: int) -> None:
    places = MAP.places(start, start + length)
    for offset in range(start, start + length):
        place = [one for one in places if one.start <= offset][-1]
        assert place[1:] == (MAP.page(offset), MAP.page_label(offset), MAP.section(offset))


@pytest.mark.parametrize(
    ("titles", "section"),
    [
        (("3. Delivery", "12.3 License"), "12.3 License"),
        (("Article 16", "Section 4.05 Access"), "Section 4.05 Access"),
        (("12. License", "12.3 Term"), "12. License > 12.3 Term"),
        (("SECTION 8 Covenants", "8.7 Audit"), "SECTION 8 Covenants > 8.7 Audit"),
        (("Part B", "1.1 Scope"), "Part B > 1.1 Scope"),
        (("2023 Report", "1 Results"), "2023 Report > 1 Results"),
        (("3. Delivery", "1. Goods"), "3. Delivery > 1. Goods"),
        (("Schedule 2", "1.1 Scope"), "Schedule 2 > 1.1 Scope"),
    ],
)
def test_a_section_contains_only_parts_with_its_number(titles: tuple[str, str], section: str) -> None:
    first, second = titles
    assert DocumentMap(headings=(Heading(0, 1, first), Heading(9, 2, second))).section(12) == section


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        ([None, None], None),
        (["One", "One"], "One"),
        ([None, "A > B", "A > B"], "A > B"),
        (["A > B", None, "A > C"], "A > B; C"),
        (["A", "A > B"], "A > B"),
        (["A > B", "A"], "A > B; A"),
        (["A > B", "C > B"], "A > B; C > B"),
        (["A > B > 1", "A > B > 2", "A > C"], "A > B > 1; B > 2; C"),
        ([f"A > {number}" for number in range(6)], "A > 0; 1; 2; 3; 4; 5"),
        ([f"A > {number}" for number in range(7)], "A > 0 … 6"),
        (["A" * 150, "B" * 150, "C" * 150], f"{'A' * 150} … {'C' * 150}"),
    ],
)
def test_several_sections_have_one_label(paths: list[str | None], label: str | None) -> None:
    assert joint_section(paths) == label


def test_the_places_of_consecutive_chunks_are_joined() -> None:
    first = {"page_start": 1, "section": "A"}
    second = {"page_start": 1, "section": "B", "places": json.dumps([[20, 1, None, "A"], [25, 1, None, "B"]])}
    assert json.loads(joint_places([(10, first), (20, second)]) or "") == [[10, 1, None, "A"], [25, 1, None, "B"]]
    assert joint_places([(10, first), (20, first)]) is None
    assert joint_places([(None, first), (20, second)]) is None


def test_text_before_the_first_page_belongs_to_it() -> None:
    assert DocumentMap(page_starts=(5, 9)).page(0) == 1


def test_a_document_without_pages_or_headings_has_none() -> None:
    empty = DocumentMap()
    assert (empty.page(3), empty.page_label(3), empty.section(3)) == (None, None, None)
    assert empty.to_metadata() == {}
    assert DocumentMap.from_metadata({}) == empty


def test_missing_labels_are_none() -> None:
    assert DocumentMap(page_starts=(0, 10), page_labels=("i",)).page_label(12) is None


headings = st.builds(Heading, st.integers(0, 10**6), st.integers(1, 6), st.text(max_size=20))


offsets, names = st.integers(0, 10**6), st.text(max_size=8)
tables_of_a_page = st.builds(Table, offsets, offsets, offsets, names, st.lists(names, max_size=2).map(tuple))


@given(
    starts=st.lists(st.integers(0, 10**6), max_size=6).map(sorted),
    labels=st.lists(st.text(max_size=4), max_size=6),
    titles=st.lists(headings, max_size=6),
    tables=st.lists(tables_of_a_page, max_size=3),
)
def test_a_document_map_is_stored_as_json_metadata(
    starts: list[int], labels: list[str], titles: list[Heading], tables: list[Table]
) -> None:
    # Labels belong to pages: without pages there is nothing to keep.
    given_map = DocumentMap(
        tuple(starts),
        tuple(labels) if starts else (),
        tuple(sorted(titles, key=lambda h: h.start)),
        tuple(tables),
    )
    stored = json.loads(json.dumps(given_map.to_metadata()))
    assert all(isinstance(value, str) for value in stored.values())
    assert DocumentMap.from_metadata(stored) == given_map


def test_a_table_is_found_from_behind_its_beginning_to_its_end() -> None:
    tables = [Table(10, 20, 40, "A"), Table(40, 50, 60, "B")]
    where = DocumentMap(tables=tables)
    expected = {10: None, 11: "A", 39: "A", 40: None, 41: "B", 59: "B", 60: None, 5: None}
    assert {at: (table := where.table(at)) and table.head for at in expected} == expected


# ---- who sees what ---------------------------------------------------------------------------------------------------


def test_the_embedding_sees_context_and_table_head_of_our_keys_and_the_llm_the_source_instead_of_the_context() -> None:
    ours = {*keys.OWN_KEYS, *keys.RESERVED_KEYS}
    assert ours - set(excluded_embed_keys()) == {keys.CONTEXT, keys.TABLE_HEAD, keys.FACTS}
    assert ours - set(excluded_llm_keys()) == {keys.SOURCE_LINE, keys.TABLE_HEAD, keys.FACTS}


def test_keys_excluded_by_the_user_stay_excluded_once() -> None:
    assert excluded_embed_keys(["fund", "fund", "title"]).count("fund") == 1
    assert excluded_embed_keys(["title"]).count("title") == 1
    assert "fund" not in excluded_llm_keys()
    assert excluded_llm_keys(["fund"])[-1] == "fund"


def test_own_metadata_keys_are_distinct_strings() -> None:
    assert len(set(keys.OWN_KEYS)) == len(keys.OWN_KEYS)
    assert not set(keys.OWN_KEYS) & set(keys.RESERVED_KEYS)
    assert set(keys.FILE_KEYS) < set(keys.OWN_KEYS)


def test_the_templates_show_bare_values_and_a_blank_line() -> None:
    node = TextNode(
        text="Text.",
        metadata={"context": "Context."},
        metadata_template=keys.METADATA_TEMPLATE,
        text_template=keys.TEXT_TEMPLATE,
    )
    assert node.get_content(metadata_mode=MetadataMode.EMBED) == "Context.\n\nText."


def test_user_metadata_excludes_own_keys() -> None:
    node = TextNode(text="x", metadata={"fund": "Alpha", "title": "T", keys.PAGES: "{}"})
    assert keys.user_metadata(node) == {"fund": "Alpha"}


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        ({}, ""),
        ({"section": "2 Results", "page_start": 3}, ""),
        ({"title": "Report"}, "Source: Report"),
        ({"title": "Report", "file_name": "r.pdf"}, "Source: r.pdf"),
        ({"file_name": "r.pdf", "page_start": 3, "page_end": 3}, "Source: r.pdf, page 3"),
        ({"file_name": "r.pdf", "page_start": 3}, "Source: r.pdf, page 3"),
        ({"file_name": "r.pdf", "page_start": 3, "page_end": 4}, "Source: r.pdf, pages 3–4"),
        (
            {"file_name": "r.pdf", "page_start": 3, "page_end": 4, "section": "2 Results"},
            "Source: r.pdf, pages 3–4, section 2 Results",
        ),
        # pages as LlamaIndex's own readers name them, slides and sheets
        ({"file_name": "a.pdf", "page_label": "iv"}, "Source: a.pdf, page iv"),
        ({"file_name": "a.pdf", "page_label": ""}, "Source: a.pdf"),
        ({"file_name": "a.pdf", "page_start": 3, "page_label": "iv"}, "Source: a.pdf, page 3"),
        ({"file_name": "a.pptx", "page_start": 3, "page_end": 4}, "Source: a.pptx, slides 3–4"),
        ({"file_name": "a.XLSX", "page_start": 2, "page_label": "Q1", "section": "Q1"}, "Source: a.XLSX, sheet Q1"),
        (
            {"file_name": "a.xlsx", "page_start": 1, "page_end": 2, "section": "Q1"},
            "Source: a.xlsx, sheets 1–2, section Q1",
        ),
    ],
)
def test_the_source_line_has_all_known_facts(metadata: dict[str, object], line: str) -> None:
    assert source_line(metadata) == line


def test_a_recognised_heading_stays_one_and_rows_without_the_mark_are_marked() -> None:
    where = DocumentMap(headings=(Heading(0, 1, "A"), Heading(5, 2, "B", is_marked=False)))

    assert DocumentMap.from_metadata(dict(where.to_metadata())) == where
    assert json.loads(where.to_metadata()[keys.HEADINGS]) == [[0, 1, "A"], [5, 2, "B", False]]
