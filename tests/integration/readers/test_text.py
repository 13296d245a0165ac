"""From the bytes of a text file to its characters."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers import ParsedFile, ReadLimits
from llama_index_contextual.readers.text import PIECE_BYTES, read_text

Reader = Callable[[bytes], ParsedFile]

FRENCH = "Où qu'il soit, le siège du bailleur est à Nîmes ; les coûts déjà engagés restent dus. "
GERMAN = "Der Mietvertrag läuft fünf Jahre. Für Schäden haftet der Mieter, außer bei höherer Gewalt. "
SPANISH = "El año pasado la compañía publicó un informe. ¿Quién será el próximo señor director? "
ITALIAN = "Il contratto è già scaduto, perché la società non può più pagare. Così sarà deciso lunedì. "
SWEDISH = "Avtalet träder i kraft när båda parter har skrivit under. Hyran måste betalas på förhand. "
ESTONIAN = "Leping jõustub allkirjastamise päeval. Üürnik peab maksma õigel ajal, välja arvatud õnnetuse korral. "
POLISH = "Umowa wchodzi w życie z dniem podpisania. Każda ze stron może ją wypowiedzieć, jeśli chcą. "
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. Každá strana může smlouvu vypovědět. "
TURKISH = "Sözleşme imza tarihinde yürürlüğe girer. İstanbul'un ışıkları çok güzeldir. "
LITHUANIAN = "Žąsys grįžta iš šiltųjų kraštų. Kiekviena šalis gali sutartį nutraukti. "
RUSSIAN = "Договор вступает в силу с момента подписания. Каждая сторона может расторгнуть его. "
GREEK = "Η σύμβαση τίθεται σε ισχύ την ημέρα της υπογραφής. Τα έξοδα βαρύνουν τον πελάτη. "
HEBREW = "ההסכם נכנס לתוקף ביום החתימה. כל צד רשאי לסיימו בהודעה של חודש מראש. "
JAPANESE = "本契約は署名の日から効力を生じます。カタカナもあります。発生した費用はお客様の負担とします。"
CHINESE = "本合同自签字之日起生效。任何一方均可提前一个月通知对方解除合同。费用由客户承担。"
KOREAN = "이 계약은 서명한 날부터 효력이 발생합니다. 각 당사자는 한 달 전에 통지할 수 있습니다. "
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
        return read_text(path)

    return reader


class TestUnicode:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(any_text, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
    def test_the_characters_are_those_of_the_file(self, read: Reader, text: str, encoding: str) -> None:
        assume(not text.isspace() and not text.startswith("\ufeff"))
        parsed = read(text.encode(encoding))
        assert parsed.text == text
        assert parsed.warnings == ()

    def test_newlines_stay_as_they_are(self, read: Reader) -> None:
        text = "one\r\ntwo\rthree\nfour\x0bfive\u2028six\x85seven"
        assert read(text.encode()).text == text

    @pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
    @pytest.mark.parametrize(
        "text", [FRENCH, RUSSIAN, CHINESE + " \n", JAPANESE * 3 + "\n", "Hi there\n", TABLE, FORMULA]
    )
    def test_utf_16_and_32_need_no_byte_order_mark(self, read: Reader, text: str, mark: str) -> None:
        parsed = read(text.encode(mark))
        assert parsed.text == text
        assert parsed.warnings == (f"has no byte order mark: read as {mark}; save it as UTF-8 if letters look wrong",)

    @pytest.mark.parametrize("mark", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
    @pytest.mark.parametrize("text", [GREEK, TABLE, FORMULA])
    def test_a_byte_order_mark_is_dropped(self, read: Reader, text: str, mark: str) -> None:
        assert read(("\ufeff" + text).encode(mark)).text == text

    def test_a_character_on_the_border_of_two_pieces_is_whole(self, read: Reader) -> None:
        text = "a" * (PIECE_BYTES - 2) + "😀 end"
        assert read(text.encode()).text == text

    def test_a_few_damaged_characters_do_not_change_the_encoding(self, read: Reader) -> None:
        parsed = read(RUSSIAN.encode() + b"\xff" + RUSSIAN.encode()[:-3])
        assert parsed.text == RUSSIAN + "\ufffd" + RUSSIAN[:-3] + "\ufffd"
        assert parsed.warnings == ("is not quite valid utf-8: 2 damaged characters were replaced by U+FFFD",)

    def test_surrogates_written_as_utf_8_do_not_come_out(self, read: Reader) -> None:
        parsed = read(RUSSIAN.encode() + "\ud83d".encode("utf-8", "surrogatepass"))
        assert parsed.text.encode()
        assert "replaced by U+FFFD" in parsed.warnings[0]

    def test_a_lone_surrogate_in_utf_16_does_not_come_out(self, read: Reader) -> None:
        parsed = read(b"\xff\xfe" + RUSSIAN.encode("utf-16-le") + b"\x00\xd8" + RUSSIAN.encode("utf-16-le"))
        assert parsed.text == RUSSIAN + "\ufffd" + RUSSIAN
        assert parsed.warnings == ("is not quite valid utf-16: 1 damaged character was replaced by U+FFFD",)

    def test_nul_characters_are_replaced_one_by_one(self, read: Reader) -> None:
        text = GERMAN * 3
        parsed = read((text[:50] + "\0" + text[51:]).encode())
        assert parsed.text == text[:50] + "\ufffd" + text[51:]
        assert parsed.warnings == ("1 NUL character was replaced by U+FFFD",)


class TestLegacyEncodings:
    @pytest.mark.parametrize(
        ("text", "encoding"),
        [
            (FRENCH, "cp1252"),
            (FRENCH, "cp850"),
            (FRENCH, "mac_roman"),
            (GERMAN, "cp1252"),
            (GERMAN, "cp850"),
            (SPANISH, "cp1252"),
            (ITALIAN, "cp1252"),
            (SWEDISH, "cp1252"),
            (ESTONIAN, "cp1252"),
            (ESTONIAN, "cp1257"),
            (POLISH, "cp1250"),
            (POLISH, "iso8859_2"),
            (CZECH, "cp1250"),
            (CZECH, "iso8859_2"),
            (TURKISH, "cp1254"),
            (LITHUANIAN, "cp1257"),
            (RUSSIAN, "cp1251"),
            (RUSSIAN, "koi8_r"),
            (RUSSIAN, "cp866"),
            (GREEK, "cp1253"),
            (HEBREW, "cp1255"),
            (JAPANESE, "cp932"),
            (JAPANESE, "euc_jp"),
            (JAPANESE, "iso2022_jp"),
            (CHINESE, "gb18030"),
            (KOREAN, "cp949"),
        ],
    )
    def test_a_paragraph_is_enough_to_tell_the_encoding(self, read: Reader, text: str, encoding: str) -> None:
        parsed = read((text * 3).encode(encoding))
        assert parsed.text == text * 3
        assert len(parsed.warnings) == 1
        assert "read as" in parsed.warnings[0]

    def test_the_only_foreign_letter_may_stand_far_behind(self, read: Reader) -> None:
        text = "The rent is due on Monday.\n" * 100_000 + "It is paid at the café.\n"
        parsed = read(text.encode("cp1252"))
        assert parsed.text == text
        assert parsed.warnings == ("is not UTF-8: read as cp1252; save it as UTF-8 if letters look wrong",)

    def test_a_long_line_is_sampled_where_it_is_foreign(self, read: Reader) -> None:
        text = "Das ist lang. " * 10_000 + GERMAN * 200
        assert read(text.encode("cp1252")).text == text

    def test_typographic_quotes_alone_are_windows_1252(self, read: Reader) -> None:
        text = "The term “Lease” means the tenant’s lease – as amended.\n"
        assert read(text.encode("cp1252")).text == text

    def test_bytes_that_no_encoding_has_are_replaced_and_reported(self, read: Reader) -> None:
        parsed = read(b"Some words. " * 20 + bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D, 0xFF, 0xFE, 0x80]))
        assert parsed.text.startswith("Some words. ")
        assert parsed.text.encode()
        assert len(parsed.warnings) == 1


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
            (b"%PDF-1.7\n" + b"x" * 100, "is not text but a PDF: give it the extension of its type"),
            (b"PK\x03\x04" + bytes(100), "is not text but a ZIP archive or Office document"),
            (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not text but a PNG image"),
            (b"{\\rtf1 hello}", "is not text but an RTF document"),
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
            read_text(tmp_path / "a.txt", limits=ReadLimits(max_bytes=1000))

    def test_the_limit_of_characters_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("ж" * 1001, encoding="utf-8")
        assert len(read_text(tmp_path / "a.txt", limits=ReadLimits(max_characters=1001)).text) == 1001
        with pytest.raises(ReadError, match=r"more than 1,000 characters: split it into smaller files"):
            read_text(tmp_path / "a.txt", limits=ReadLimits(max_characters=1000))

    def test_a_missing_file_is_a_read_error(self, tmp_path: Path) -> None:
        with pytest.raises(ReadError, match="cannot be read: No such file"):
            read_text(tmp_path / "a.txt")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.txt")
        with pytest.raises(ReadError, match="not a regular file"):
            read_text(tmp_path / "a.txt")

    def test_a_long_line_is_read_to_the_character(self, read: Reader) -> None:
        text = "word " * 2_000_000
        assert read(text.encode()).text == text


def test_memory_stays_below_three_times_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((b"The rent is due on Monday. " * 100 + b"\n\n") * 10_000)
    tracemalloc.start()
    parsed = read_text(path)
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
