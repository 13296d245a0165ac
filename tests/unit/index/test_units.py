"""Units as arrays: their terms and directions, selections, files, and units without word vectors."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.embeddings.words import embedded, word_vectors
from llama_index_contextual.index import units as module
from llama_index_contextual.index.analysis import Analyzer, tokens
from llama_index_contextual.index.cutting import Kind, units_of
from llama_index_contextual.index.units import DIMENSIONS, Units, UnitsBuilder
from llama_index_contextual.metadata import CONTEXT, TITLE

Passage = tuple[str, Mapping[str, object]]

ENGLISH = Analyzer("english", has_periods=True)
WORDS = (
    *("water", "pumps", "TS-999", "garden", "fee", "3.10", "FY2018", "fiscal", "2018", "May", "the", "__", "\ud800"),
    *(
        "水泵停止",
        "ポンプ",
        "المضخة",
        "Übergrößenträger",
        "naïve",
        "x" * 300,
        "🙂",
        "|",
        "\n",
        "\n\n",
        ". ",
        "\t",
        "  ",
    ),
)
TEXTS = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
PASSAGES = st.lists(st.tuples(TEXTS, st.fixed_dictionaries({}, optional={TITLE: TEXTS, CONTEXT: TEXTS})), max_size=6)


def has_wordllama() -> bool:
    return bool(module.words_identity())


def assert_equal(first: Units, second: Units, *, types: bool = True) -> None:
    for each in fields(Units):
        one, other = getattr(first, each.name), getattr(second, each.name)
        assert one.shape == other.shape, each.name
        assert np.array_equal(one, other), each.name
        assert not types or one.dtype == other.dtype, each.name


@given(PASSAGES)
def test_units_contain_the_terms_of_their_texts(passages: Sequence[Passage]) -> None:
    units = Units.of(passages, ENGLISH, has_vectors=False)
    texts = [unit.text for text, metadata in passages for unit in units_of(text, metadata)]
    terms_of = [set(ENGLISH.terms(text)) for text in texts]
    terms = sorted({"pump", "zebra", *(term for terms in terms_of for term in terms)})
    assert units.contain(terms).tolist() == [[term in terms for terms in terms_of] for term in terms]
    assert units.contain([]).shape == (0, len(texts))
    assert units.words.tolist() == [len(tokens(text)) for text in texts]


@given(PASSAGES)
def test_arrays_describe_the_units_of_each_passage(passages: Sequence[Passage]) -> None:
    units = Units.of(passages, None, has_vectors=False)
    expected = [units_of(text, metadata) for text, metadata in passages]
    assert units.rows == len(passages)
    assert np.diff(units.firsts).tolist() == [len(one) for one in expected]
    listed = [unit for one in expected for unit in one]
    assert units.kinds.tolist() == [unit.kind for unit in listed]
    assert (units.starts.tolist(), units.ends.tolist()) == ([one.start for one in listed], [one.end for one in listed])
    assert units.heads.tolist() == [unit.head for unit in listed]
    assert units.terms.shape == (0, 3)
    assert units.kinds[units.firsts[:-1]].tolist() == [Kind.HEADER] * len(passages)


@given(PASSAGES, st.data())
def test_units_of_some_rows_are_those_of_their_passages(passages: Sequence[Passage], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(passages) - 1), max_size=8)) if passages else []
    units = Units.of(passages, ENGLISH).take(np.array(rows, dtype=np.int64))
    assert_equal(units, Units.of([passages[row] for row in rows], ENGLISH), types=False)


@given(st.lists(PASSAGES, max_size=4))
def test_units_of_several_groups_are_those_of_all_passages(groups: Sequence[Sequence[Passage]]) -> None:
    everything = [passage for group in groups for passage in group]
    joined = Units.join([Units.of(group, ENGLISH) for group in groups])
    if groups:
        assert_equal(joined, Units.of(everything, ENGLISH), types=False)
    assert joined.rows == len(everything)
    builder = UnitsBuilder(ENGLISH)
    for number, group in enumerate(groups):
        if number % 2:
            builder.add_units(Units.of(group, ENGLISH))
        else:
            for text, metadata in group:
                builder.add(text, metadata)
    assert_equal(builder.build(), Units.of(everything, ENGLISH))
    assert_equal(builder.build(), Units.of(everything, ENGLISH))


def test_passages_are_converted_alike_however_many_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    passages = [(" ".join(rng.choices(WORDS, k=30)), {TITLE: " ".join(rng.choices(WORDS, k=3))}) for _ in range(40)]
    expected = Units.of(passages, ENGLISH)
    monkeypatch.setattr(module, "_PENDING", 50)
    monkeypatch.setattr(module, "_MAX_WORDS", 5)
    assert_equal(Units.of(passages, ENGLISH), expected)


def test_integers_have_the_smallest_type_that_fits() -> None:
    short, long = Units.of([("a\nb", {})], ENGLISH), Units.of([("a\n" * 300 + "b " * 80_000, {})], ENGLISH)
    assert {short.firsts.dtype, short.ends.dtype, short.words.dtype} == {np.dtype(np.uint8)}
    assert (long.firsts.dtype, long.ends.dtype, long.kinds.dtype) == (np.uint16, np.uint32, np.uint8)


@given(PASSAGES)
def test_a_file_is_read_as_written(tmp_path_factory: pytest.TempPathFactory, passages: Sequence[Passage]) -> None:
    path = tmp_path_factory.mktemp("part") / "units.bin"
    units = Units.of(passages, ENGLISH)
    units.save(path)
    assert_equal(Units.load(path), units)
    first = path.read_bytes()
    Units.load(path).save(path.with_name("again.bin"))
    assert path.with_name("again.bin").read_bytes() == first


# ---- directions ------------------------------------------------------------------------------------------------------


def directions(passages: Sequence[Passage]) -> np.ndarray:
    """Return the direction of each unit with its header in full precision; shape (units, dimensions)."""
    rows = []
    for text, metadata in passages:
        sums = []
        for unit in units_of(text, metadata):
            words = tokens(unit.text)
            total = word_vectors(words, DIMENSIONS).sum(axis=0) if words else np.zeros(DIMENSIONS)
            sums.append(total / (np.linalg.norm(total) or 1.0))
        rows += [one + sums[0] for one in sums]
    return np.array(rows)


@pytest.mark.skipif(not has_wordllama(), reason="needs the extra local")
def test_similarities_differ_little_from_those_of_whole_numbers() -> None:
    draw = random.Random(7)  # the largest difference depends on the texts
    lines = [" ".join(draw.choices(WORDS[:12], k=draw.randint(1, 12))) for _ in range(300)]
    question = "When is the garden water fee due?"
    passages: list[Passage] = [("\n".join(lines), {TITLE: "Garden fees"}), ("", {}), (question, {})]
    vector = embedded([question])[0, :DIMENSIONS]
    vector /= np.linalg.norm(vector)
    exact = directions(passages)
    exact = exact @ vector / np.maximum(np.linalg.norm(exact, axis=1), 1e-9)
    units = Units.of(passages, None)
    differences = np.abs(units.similarities(vector) - exact)[units.words > 0]
    assert len(differences) > 200
    assert differences.mean() < 0.06
    assert differences.max() < 0.2
    assert not units.similarities(vector)[units.words == 0].any()
    assert units.similarities(vector)[-1] > 0.9  # the question itself


def test_a_direction_is_read_from_numbers_of_two_bits() -> None:
    units = Units.of([("The pump.", {})], None, has_vectors=False)
    # Each byte has four numbers from 0 to 3, the first in its lowest bits, which stand for -3, -1, 1 and 3.
    byte = 0 | 1 << 2 | 2 << 4 | 3 << 6
    columns = {name: units.table[name] for name in units.table.dtype.names if name != "directions"}
    table = np.zeros(3, dtype=[*((name, column.dtype) for name, column in columns.items()), ("directions", "u1", (1,))])
    for name, column in columns.items():
        table[name] = column
    table["directions"] = byte
    units = replace(units, table=table)
    of_axes = [units.similarities(axis)[-1] for axis in np.eye(4, dtype=np.float32)]
    assert of_axes == pytest.approx([number / 20**0.5 for number in (-3, -1, 1, 3)])
    assert not units.similarities(np.eye(4, dtype=np.float32)[0])[:2].any()  # the texts before it are empty


def test_without_wordllama_units_have_terms_but_no_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "words_identity", lambda: "")
    units = Units.of([("The pump stops.", {TITLE: "Pumps"})], ENGLISH)
    assert units.directions.shape == (3, 0)
    assert units.similarities(np.ones(DIMENSIONS, dtype=np.float32)).tolist() == [0.0] * 3
    assert units.contain(["pump"]).tolist() == [[True, False, True]]


def test_the_share_of_terms_that_other_rows_contain_as_well() -> None:
    texts = ["Pumps lift water. The pump hums.", "Water for pumps.", "A valve.", "", "Water pumps"]
    units = Units.of([(text, {}) for text in texts], ENGLISH, has_vectors=False)
    assert units.shared(0.5).tolist() == pytest.approx([2 / 4, 1.0, 0.0, 0.0, 1.0])  # pump, lift, water, hum
    assert units.shared(0.8).tolist() == [0.0] * 5
    alike = Units.of([(texts[0], {}), (texts[0], {})], ENGLISH, has_vectors=False)
    assert alike.shared(0.1).tolist() == [1.0, 1.0]
    assert alike.take(np.array([0])).shared(0.1).tolist() == [0.0]
    assert alike.take(np.zeros(0, dtype=np.int64)).shared(0.1).tolist() == []


def test_the_share_of_terms_of_many_is_estimated() -> None:
    chance = random.Random(3)
    words = ["".join(chance.choices("bcdfghjklmnpqrtvwxz", k=8)) for _ in range(2_300)]
    common, own = words[:300], [words[start : start + 100] for start in range(300, 2_300, 100)]
    units = Units.of([(" ".join(common + others), {}) for others in own], ENGLISH, has_vectors=False)
    assert units.shared(0.5) == pytest.approx(np.full(20, 0.75), abs=0.25)
    assert units.shared(0.5).mean() == pytest.approx(0.75, abs=0.1)


def test_no_units_have_no_similarities() -> None:
    none = Units.of([("The pump.", {})], ENGLISH).take(np.zeros(0, dtype=np.int64))
    assert none.similarities(np.ones(DIMENSIONS, dtype=np.float32)).shape == (0,)
    assert none.contain(["pump"]).shape == (1, 0)


@pytest.mark.skipif(not has_wordllama(), reason="needs the extra local")
def test_units_without_directions_are_joined_with_others_without_directions() -> None:
    units = Units.of([("The pump stops.", {})], ENGLISH)
    joined = Units.join([units.without_directions(), units])
    assert units.directions.shape == (3, DIMENSIONS // 4)
    assert joined.directions.shape == (6, 0)
    assert joined.contain(["pump"]).tolist() == [[False, False, True] * 2]


def test_terms_with_the_same_checksum_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_checksum", lambda term: 7 if term in ("pump", "valve") else len(term) + 100)
    units = Units.of([("The pump.\nThe meter.", {})], ENGLISH, has_vectors=False)
    assert units.contain(["valve", "meter", "pump"]).tolist() == [
        [False, False, True, False],
        [False, False, False, True],
        [False, False, True, False],
    ]


def test_a_file_of_the_second_edition_has_its_sketches_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Units.of([("The pump runs dry. Close the valve.", {}), ("", {}), ("A pump.", {})], ENGLISH)
    old = [each for each in fields(Units) if each.name != "sketches"]
    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.index.units.fields", lambda _: old)
        units.save(tmp_path / "units.bin")
    loaded = Units.load(tmp_path / "units.bin")
    assert loaded.sketches.tolist() == units.sketches.tolist()
    assert loaded.terms.tolist() == units.terms.tolist()
