"""Figures of documents: labels, references, the figures of a chunk, and stored pictures."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.figures import (
    Figure,
    FigureIndex,
    figures_from_json,
    figures_json,
    label_at_start,
    label_key,
    references_in,
    with_distances,
)
from llama_index_contextual.index.cutting import Kind, units_of

PUMP = Figure(id="1", caption="Figure 1: The pump", start=20, end=38, page=2)
VALVE = Figure(id="2", caption="Fig. 2 Valve", start=60, end=72, page=3)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Figure 3: Pump", "Figure 3"),
        ("Fig. 3.2 Pump", "Fig. 3.2"),
        ("FIG. 1 – Les dimensions", "FIG. 1"),
        ("Abb. 2-1 Ventil", "Abb. 2-1"),
        ("Abbildung 12: Ventil", "Abbildung 12"),
        ("Bild 4 Ventil", "Bild 4"),
        ("Figure A.3 Pump", "Figure A.3"),
        ("Figura 7. Bomba", "Figura 7"),
        ("Рис. 3. Насос", "Рис. 3"),
        ("图 3 泵", "图 3"),
        ("図3 ポンプ", "図3"),
        ("그림 2 펌프", "그림 2"),
        ("Exhibit 4: Flow", "Exhibit 4"),
        ("Figure IV: Flow", "Figure IV"),
        ("Table 3: Prices", ""),
        ("Figures show that 3 pumps leak", ""),
        ("figure 12% of the sum", ""),
        ("The figure 3", ""),
        ("Configure 3 pumps", ""),
    ],
)
def test_a_label_is_recognised_at_the_start_of_a_caption(text: str, label: str) -> None:
    assert label_at_start(text) == label


def test_references_name_figures_by_their_labels() -> None:
    text = "See Figure 1, Figs. 2 and 3, siehe Abbildung 4 (Fig. 5a) but Table 6 and 7 pumps."
    assert [key for _, key in references_in(text)] == ["f1", "f2", "f3", "a4", "f5a"]
    assert [key for _, key in references_in("如图 3 所示")] == ["图3"]


def test_labels_of_different_words_differ() -> None:
    assert label_key("Figure 3") == label_key("Fig. 3") != label_key("Exhibit 3")


def test_a_chunk_has_its_own_figures_and_those_it_refers_to() -> None:
    index = FigureIndex([PUMP, VALVE, Figure(id="3", alt="A photo", start=100, end=100)])
    assert index.of_chunk("Before it.", 0) == []
    assert index.of_chunk("x" * 20, 10) == [PUMP]
    assert index.of_chunk("See Fig. 2a and Figure 9.", 0) == [PUMP, VALVE]
    assert [figure.id for figure in index.of_chunk("y" * 10, 95)] == ["3"]


def test_the_figure_of_the_marked_sentence_comes_first() -> None:
    figures = [PUMP, VALVE]
    assert with_distances(figures, "Fig. 2 Valve", 60, 72, 3) == [(0, VALVE), (3, PUMP)]
    assert with_distances(figures, "As Figure 1 shows", 100, 117, 3) == [(1, PUMP), (2, VALVE)]
    assert with_distances(figures, "It leaks.", 0, 9, 5) == [(3, PUMP), (3, VALVE)]


def test_figures_survive_as_metadata_with_the_folder_of_their_pictures(tmp_path: Path) -> None:
    figure = Figure(id="4", kind="chart", alt="Sales", values="2024  5", box=(1.0, 2.0, 3.0, 4.5), page=1)
    text = figures_json([PUMP, figure])
    assert figures_from_json(text) == (PUMP, figure)
    for other in (None, "", "3", "[1]", '[{"id": 1', '[{"id": "1", "start": [', ["a"], {"id": "1"}, 7):
        assert figures_from_json(other) == ()
    assert [each.folder for each in figures_from_json(text, tmp_path)] == [tmp_path, tmp_path]
    assert Figure.from_json({**figure.to_json(), "added_later": 1}) == figure


def test_a_picture_is_checked_when_it_is_read(tmp_path: Path) -> None:
    sha256 = hashlib.sha256(b"picture").hexdigest()
    figure = Figure(id="1", sha256=sha256, media_type="image/png", folder=tmp_path)
    with pytest.raises(CorruptVersionError, match="is missing"):
        figure.read_bytes()
    (tmp_path / f"{sha256}.png").write_bytes(b"picture")
    assert figure.path == tmp_path / f"{sha256}.png"
    assert figure.read_bytes() == b"picture"
    (tmp_path / f"{sha256}.png").write_bytes(b"Picture")
    with pytest.raises(CorruptVersionError, match="has changed since it was stored"):
        figure.read_bytes()
    with pytest.raises(InputError, match="has no picture"):
        PUMP.read_bytes()


def test_the_caption_of_a_figure_is_a_unit_of_its_own_kind() -> None:
    text = "The pump is large.\n\nFigure 1: The pump\n\nIt is seen from above."
    figures = figures_json([Figure(id="1", caption="Figure 1: The pump", start=20, end=38)])
    units = units_of(text, {"figure_records": figures})
    assert [(unit.kind, unit.text) for unit in units[2:]] == [
        (Kind.TEXT, "The pump is large."),
        (Kind.CAPTION, "Figure 1: The pump"),
        (Kind.TEXT, "It is seen from above."),
    ]
    assert Kind.CAPTION not in {unit.kind for unit in units_of(text, {})}
