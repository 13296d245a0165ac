"""From the bytes of a text file to its characters."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.text import parse_text
from tests.unit.readers.examples import sections

Reader = Callable[[bytes], ParsedFile]

LANGUAGES = {title.partition(":")[0]: f"{text} " for title, (text,) in sections("languages").items()}
ENCODINGS = {title.partition(":")[0]: title.partition(":")[2].split() for title in sections("languages")}
FRENCH = LANGUAGES["FRENCH"]
GERMAN = LANGUAGES["GERMAN"]
RUSSIAN = LANGUAGES["RUSSIAN"]
GREEK = LANGUAGES["GREEK"]
JAPANESE = LANGUAGES["JAPANESE"]
CHINESE = LANGUAGES["CHINESE"]
TABLE = "┌────┬───┐\n│ a  │ 1 │\n└────┴───┘\n" * 10
FORMULA = "∀x ∈ ℝ: x² ≥ 0 ∧ ∃y ≤ x ⇒ √y ∉ ∅\n" * 10


# Control characters apart from white space make a text binary, surrogates are no characters.
any_text = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\r\t"), min_size=1)


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Reads bytes as if they were a text file."""

    def reader(content: bytes) -> ParsedFile:
        path = tmp_path / "a.txt"
        path.write_bytes(content)
        return parse_text(FileSource.open(path, ReadLimits()))

    return reader


class TestUnicode:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(any_text, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    def test_the_characters_are_those_of_the_file(self, read: Reader, text: str, encoding: str) -> None:
        assume(not text.isspace() and not text.startswith("\ufeff"))
        parsed = read(text.encode(encoding))
        assert parsed.text == text
        assert parsed.warnings == ()

    def test_newlines_stay_as_they_are(self, read: Reader) -> None:
        text = "one\r\ntwo\rthree\nfour\x0bfive\u2028six\x85seven"
        assert read(text.encode()).text == text

    @pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be"])
    @pytest.mark.parametrize("text", [GREEK, CHINESE, TABLE, FORMULA])
    def test_a_byte_order_mark_is_dropped(self, read: Reader, text: str, mark: str) -> None:
        assert read(("\ufeff" + text).encode(mark)).text == text

    @pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
    @pytest.mark.parametrize(
        "text", ["a", "Größe 12\n", GERMAN, RUSSIAN, f"{CHINESE}\n12", "line\r\n" * 40_000, f"{'word ' * 20_000}😀"]
    )
    def test_wide_text_needs_no_byte_order_mark(self, read: Reader, text: str, encoding: str) -> None:
        parsed = read(text.encode(encoding))
        assert (parsed.text, parsed.warnings) == (text, ())

    @pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
    def test_utf_32_with_a_byte_order_mark(self, read: Reader, encoding: str) -> None:
        assert read(f"\ufeff{GERMAN}".encode(encoding)).text == GERMAN

    def test_a_few_damaged_characters_do_not_change_the_encoding(self, read: Reader) -> None:
        parsed = read(RUSSIAN.encode() + b"\xff" + RUSSIAN.encode()[:-3])
        assert parsed.text == RUSSIAN + "\ufffd" + RUSSIAN[:-3] + "\ufffd"
        assert parsed.warnings == ("is not quite valid utf-8: 2 damaged characters replaced by U+FFFD",)

    def test_a_lone_surrogate_in_utf_16_does_not_come_out(self, read: Reader) -> None:
        parsed = read(b"\xff\xfe" + RUSSIAN.encode("utf-16-le") + b"\x00\xd8" + RUSSIAN.encode("utf-16-le"))
        assert parsed.text == RUSSIAN + "\ufffd" + RUSSIAN
        assert parsed.warnings == ("is not quite valid utf-16: 1 damaged character replaced by U+FFFD",)

    def test_nul_characters_are_replaced_one_by_one(self, read: Reader) -> None:
        text = GERMAN * 3
        parsed = read((text[:50] + "\0" + text[51:]).encode())
        assert parsed.text == text[:50] + "\ufffd" + text[51:]
        assert parsed.warnings == ("1 NUL character replaced by U+FFFD",)


class TestLegacyEncodings:
    @pytest.mark.parametrize(
        ("text", "encoding"), [(LANGUAGES[language], name) for language in LANGUAGES for name in ENCODINGS[language]]
    )
    def test_a_paragraph_is_enough_to_tell_the_encoding(self, read: Reader, text: str, encoding: str) -> None:
        parsed = read((text * 3).encode(encoding))
        assert parsed.text == text * 3
        assert len(parsed.warnings) == 1
        assert "read as" in parsed.warnings[0]

    @pytest.mark.parametrize(
        ("text", "encoding"),
        [
            ("Größe und Übergabe: das Gerät kostet 12 Mark, Fläche schön.", "cp850"),
            ("Größe und Übergabe: das Gerät kostet 12 Mark, Fläche schön.", "mac_roman"),
            ("Le loyer est payé à l'avance, même en été.", "cp850"),
            ("חוזה שכירות לדירה בתל אביב", "cp1255"),
            ("שלום עולם, המחיר הוא 300 שקל לחודש", "cp1255"),
            ("Привет, мир. Цена 300 рублей", "cp1251"),
            ("Договорът влиза в сила от датата на подписване.", "cp1251"),
            ("Sözleşme 3 Mayıs günü biter; ücret 500 liradır. Şehir: İstanbul.", "cp1254"),
            ("A szerződés az aláírás napján lép hatályba.", "cp1250"),
            ("A szerződés az aláírás napján lép hatályba.", "cp852"),
            ("Každá strana může smlouvu vypovědět.", "cp852"),
            ("合約第五條：租金為每月三千元，押金為一個月租金。", "big5"),
            ("Договор аренды заключён между сторонами.", "koi8_r"),
            ("賃貸借契約書。遅延損害金は年十四パーセントとする。", "euc_jp"),
            ("支払期日は毎月末日です。", "cp932"),
            ("Каждая из сторон", "cp866"),
        ],
    )
    def test_a_short_text_is_enough(self, read: Reader, text: str, encoding: str) -> None:
        assert read(text.encode(encoding)).text == text

    @pytest.mark.parametrize("encoding", ["iso2022_jp", "iso2022_jp_2"])
    def test_escape_sequences_switch_to_japanese_letters(self, read: Reader, encoding: str) -> None:
        parsed = read("遅延損害金は\n年 14 % です。".encode(encoding))
        assert (parsed.text, parsed.warnings) == ("遅延損害金は\n年 14 % です。", ())

    def test_escape_sequences_for_colours_are_kept(self, read: Reader) -> None:
        assert read(b"\x1b$x (1) \x1b(0").text == "\x1b$x (1) \x1b(0"

    def test_the_only_foreign_letter_may_stand_far_behind(self, read: Reader) -> None:
        text = "The rent is due on Monday.\n" * 100_000 + "It is paid at the café.\n"
        parsed = read(text.encode("cp1252"))
        assert parsed.text == text
        assert parsed.warnings == ("is not UTF-8: read as cp1252; save it as UTF-8 if letters look wrong",)


class TestBadInput:
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"", "is empty"),
            (b" \n\t\r\n" * 1000, "is empty: it contains only white space"),
            (b"\xef\xbb\xbf", "is empty: it contains only white space"),
            (" \u3000\u2003\n".encode("utf-16"), "is empty: it contains only white space"),
            (bytes(5000), "is a binary file, not text"),
            (random.Random(7).randbytes(100_000), "is a binary file, not text"),
            (b"%PDF-1.7\n" + b"x" * 100, "is a binary file, not text"),
            (b"PK\x03\x04" + bytes(100), "is a binary file, not text"),
            (b"\x89PNG\r\n\x1a\n" + bytes(100), "is a binary file, not text"),
            (b"{\\rtf1 hello}", "is a binary file, not text"),
            (b"words " * 50_000 + random.Random(7).randbytes(300_000), "is a binary file, not text"),
            (b"words " * 50_000 + bytes(300_000), "is a binary file, not text"),
        ],
    )
    def test_what_is_no_text_is_refused(self, read: Reader, content: bytes, reason: str) -> None:
        with pytest.raises(ReadError) as caught:
            read(content)
        assert caught.value.reason.startswith(reason)

    def test_the_limit_of_bytes_is_kept_while_reading(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"x" * 1001)
        with pytest.raises(ReadError, match=r"more than 1,000 bytes: split it into smaller files"):
            FileSource.open(tmp_path / "a.txt", ReadLimits(max_bytes=1000))

    def test_the_limit_of_characters_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("ж" * 1001, encoding="utf-8")
        parsed = parse_text(FileSource.open(tmp_path / "a.txt", ReadLimits(max_characters=1001)))
        assert len(parsed.text) == 1001
        with pytest.raises(ReadError, match=r"more than 1,000 characters: split it into smaller files"):
            parse_text(FileSource.open(tmp_path / "a.txt", ReadLimits(max_characters=1000)))


def test_memory_stays_below_three_times_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((b"The rent is due on Monday. " * 100 + b"\n\n") * 10_000)
    tracemalloc.start()
    parsed = parse_text(FileSource.open(path, ReadLimits()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(parsed.text) == path.stat().st_size
    assert peak < 3 * path.stat().st_size


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_give_storable_text_or_a_reason(read: Reader, content: bytes) -> None:
    with suppress(ReadError):
        text = read(content).text
        assert text.encode().strip()
        assert "\0" not in text
