"""Which files the inputs stand for, and under which ids."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers import FileRef, ReadLimits, content_hash, discover, read_documents
from llama_index_contextual.readers.discovery import names_of, printable
from tests.support.trees import contracts_folder, ids, reasons, write


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """A folder with two subfolders and four documents."""
    return contracts_folder(tmp_path)


class TestIds:
    def test_a_folder_gives_paths_from_its_parent_in_the_order_of_the_names(self, contracts: Path) -> None:
        found = discover([contracts])
        assert ids(found) == ["contracts/2023/c.pdf", "contracts/2023/q1/d.TXT", "contracts/a.txt", "contracts/b.md"]
        assert found.skipped == ()

    def test_a_file_gives_its_name(self, contracts: Path) -> None:
        assert ids(discover([contracts / "2023" / "c.pdf"])) == ["c.pdf"]

    def test_a_single_path_needs_no_list(self, contracts: Path) -> None:
        assert ids(discover(str(contracts / "a.txt"))) == ["a.txt"]

    def test_a_glob_gives_the_ids_that_its_folder_would(self, contracts: Path) -> None:
        assert ids(discover([f"{contracts}/**/*.txt"])) == ["contracts/2023/q1/d.TXT", "contracts/a.txt"]

    def test_the_way_a_folder_is_named_does_not_matter(self, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = ids(discover([contracts]))
        monkeypatch.chdir(contracts)
        for name in (".", "./", "../contracts", "2023/..", "**", "./**/*"):
            assert ids(discover([name])) == expected, name

    def test_nothing_in_an_id_depends_on_where_the_folder_lies(self, contracts: Path) -> None:
        assert not any(str(contracts.parent) in doc_id for doc_id in ids(discover([contracts])))

    def test_of_two_files_with_one_id_the_second_gets_the_shortest_longer_path(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / folder / "report.txt", folder) for folder in ("q1", "q2", "x/q2")]
        assert ids(discover(paths)) == ["report.txt", "q2/report.txt", "x/q2/report.txt"]
        folders = [path.parent for path in paths]
        assert ids(discover(folders)) == ["q1/report.txt", "q2/report.txt", "x/q2/report.txt"]

    def test_a_longer_id_is_said_once_for_a_folder_and_names_the_shorter_one(self, tmp_path: Path) -> None:
        for name in ("2023/reports/a.txt", "2024/reports/a.txt", "2024/reports/b.txt", "2023/reports/b.txt"):
            write(tmp_path / name, name)
        found = read_documents([tmp_path / "2023/reports", tmp_path / "2024/reports"])
        assert [document.id_ for document in found][2:] == ["2024/reports/a.txt", "2024/reports/b.txt"]
        (warning,) = found.warnings
        assert warning.path == str(tmp_path / "2024/reports")
        assert warning.message == (
            "2 of its files get longer ids, such as the id '2024/reports/a.txt',"
            " because 'reports/a.txt' is the id of another document"
        )

    def test_a_drive_or_share_of_windows_is_part_of_the_longest_id(self) -> None:
        refs = [
            FileRef(Path("a.md"), "", 1, "a.md", names=names_of(PureWindowsPath(path)), depth=1)
            for path in ("C:/reports/a.md", "D:/reports/a.md", "//host/share/reports/a.md", "C:/reports/a.md")
        ]
        taken: set[str] = set()
        for ref in refs:
            taken.add(ref.free_id(taken))
        assert taken == {"a.md", "reports/a.md", "share/reports/a.md", "C/reports/a.md"}
        assert refs[0].free_id({*taken, "C/reports/a (2).md"}) == "C/reports/a (3).md"

    @given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(tuple), max_size=12))
    def test_ids_are_never_given_twice_and_always_end_like_the_path(self, paths: list[tuple[str, ...]]) -> None:
        taken: set[str] = set()
        for names in paths:
            ref = FileRef(Path("x"), "x", 1, "x", names=names, depth=1)
            doc_id = ref.free_id(taken)
            assert doc_id not in taken
            assert "/".join(names).endswith(doc_id) or doc_id.startswith(f"{'/'.join(names)} (")
            shorter = ["/".join(names[-n:]) for n in range(1, doc_id.count("/") + 1)]
            assert all(other in taken for other in shorter)
            taken.add(doc_id)

    def test_a_name_cannot_reach_the_terminal(self, tmp_path: Path) -> None:
        write(tmp_path / "docs" / "a\x1b[31m\u202etxt.\nb.txt", "x")
        ref = discover([tmp_path / "docs"]).files[0]
        assert ref.doc_id == "docs/a\\x1b[31m\\u202etxt.\\x0ab.txt"
        assert ref.shown.endswith(ref.doc_id)

    @pytest.mark.skipif(os.name == "nt" or os.uname().sysname == "Darwin", reason="names are bytes on Linux only")
    def test_a_name_that_is_not_utf_8_gets_an_id_that_is(self, tmp_path: Path) -> None:
        folder = tmp_path / "docs"
        folder.mkdir()
        Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("x")
        assert ids(discover([folder])) == ["docs/caf\\udce9.txt"]


class TestInputs:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("missing.txt", "does not exist"),
            ("missing/**/*.txt", "matches no file: its folder does not exist"),
            ("contracts/*.docx", "matches no file"),
            ("contracts/empty", "contains no file"),
            ("", "is not a path"),
            ("a\0b.txt", "is not a path"),
            ("https://example.org/a.pdf", "is a web address: save the page as HTML or PDF"),
            ("contracts/a.txt/b.txt", "cannot be accessed"),
            ("x" * 5000, "cannot be accessed"),
        ],
    )
    def test_what_is_no_file_is_reported_and_the_rest_goes_on(
        self, contracts: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
    ) -> None:
        (contracts / "empty").mkdir()
        monkeypatch.chdir(contracts.parent)
        found = discover([name, "contracts/a.txt"])
        assert ids(found) == ["a.txt"]
        assert [skipped.path for skipped in found.skipped] == [printable(name)]
        assert found.skipped[0].reason.startswith(reason)

    @pytest.mark.parametrize("item", [3, None, b"a.txt", ["a.txt"]])
    def test_what_is_no_path_is_an_error(self, item: object) -> None:
        with pytest.raises(InputError, match="must be a path"):
            discover([item])  # type: ignore[list-item]

    def test_a_name_with_brackets_is_a_file_where_it_exists(self, tmp_path: Path) -> None:
        write(tmp_path / "a[1].txt", "x")
        write(tmp_path / "a1.txt", "y")
        assert ids(discover([tmp_path / "a[1].txt"])) == ["a[1].txt"]

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("talk.mp3", "transcribe it and add the transcript as .txt"),
            ("talk.MP4", "transcribe it and add the transcript as .txt"),
            ("all.tar.gz", "unpack it"),
            ("photo.heic", "save it as .png or .jpg"),
            ("data.sqlite", "export its tables as .csv"),
            ("plan.dwg", "convert it to PDF, HTML or text"),
        ],
    )
    def test_the_advice_on_a_file_that_is_not_read_fits_its_kind(self, tmp_path: Path, name: str, advice: str) -> None:
        write(tmp_path / name, "x")
        (skipped,) = discover([tmp_path / name]).skipped
        assert skipped.reason.endswith(f" and is not read: {advice}")

    def test_other_types_are_pointed_to_the_readers_of_llama_index(self, tmp_path: Path) -> None:
        write(tmp_path / "docs/a.zip", "x")
        write(tmp_path / "docs/b.doc", "x")
        write(tmp_path / "docs/README", "x")
        found = reasons(discover([tmp_path / "docs"]))
        assert found["a.zip"] == "has the type .zip and is not read: unpack it"
        assert (
            found["b.doc"] == "has the type .doc and is not read: open it in Word or LibreOffice and save it as .docx"
        )
        assert found["README"].startswith("has no file extension")

    def test_the_same_file_named_twice_is_read_once(self, contracts: Path) -> None:
        found = discover([contracts, contracts / "a.txt", f"{contracts}/*.txt"])
        assert len(found.files) == 4
        assert [skipped.reason for skipped in found.skipped] == [
            f"is the same file as {contracts / 'a.txt'}, which is read once"
        ] * 2

    def test_a_file_over_the_limit_is_refused_without_being_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (tmp_path / "huge.txt").open("wb") as file:
            file.truncate(1_000_000_000)
        monkeypatch.setattr(os, "open", None)
        found = discover([tmp_path / "huge.txt"], limits=ReadLimits(max_bytes=999))
        assert found.skipped[0].reason == (
            "has 1,000,000,000 bytes, more than the limit of 999: split it into smaller files"
        )

    def test_a_folder_that_a_glob_names_is_not_silently_left_out(self, contracts: Path) -> None:
        found = discover([f"{contracts}/*"])
        assert ids(found) == ["contracts/a.txt", "contracts/b.md"]
        assert "end the pattern with /**" in reasons(found)["2023"]


class TestContentHash:
    def test_it_is_the_xxh3_of_the_bytes(self, tmp_path: Path) -> None:
        content = os.urandom(3_000_001)
        (tmp_path / "a.pdf").write_bytes(content)
        assert content_hash(tmp_path / "a.pdf") == xxhash.xxh3_128_hexdigest(content)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_it_does_not_wait_for_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.txt")
        with pytest.raises(ReadError, match="not a regular file"):
            content_hash(tmp_path / "pipe.txt")

    def test_a_missing_file_is_a_read_error(self, tmp_path: Path) -> None:
        with pytest.raises(ReadError, match="cannot be opened: No such file"):
            content_hash(tmp_path / "a.txt")
