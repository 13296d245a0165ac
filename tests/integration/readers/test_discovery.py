"""Files found in a folder, and links that lead out of it."""

from __future__ import annotations

import os
import socket
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.readers import FileRef, content_hash, discover, read_documents
from llama_index_contextual.readers.files import (
    MAX_DEPTH,
    FileSource,
    ReadLimits,
    matching_entries,
    one_line,
    printable,
    printable_path,
)
from tests.support.trees import contracts_folder, ids, reasons, write


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """A folder with two subfolders and four documents."""
    return contracts_folder(tmp_path)


class TestWhatLeadsOutOfAFolder:
    def test_hidden_files_and_folders_are_reported(self, contracts: Path) -> None:
        write(contracts / ".secret.txt", "x")
        write(contracts / ".git/notes.md", "x")
        found = discover([contracts])
        assert len(found.files) == 4
        assert reasons(found) == {
            ".git": "is hidden: name it directly to read it",
            ".secret.txt": "is hidden: name it directly to read it",
        }

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("a.odt", "open it and save it as .docx"),
            ("a.fodt", "open it and save it as .docx"),
            ("a.ods", "open it and save it as .xlsx"),
            ("a.odp", "open it and save it as .pptx"),
            ("a.odg", "convert it to PDF, HTML or text"),
        ],
    )
    def test_opendocument_files_are_reported_with_what_to_do(self, contracts: Path, name: str, remedy: str) -> None:
        write(contracts / name, "x")
        assert reasons(discover([contracts])) == {name: f"has the type {Path(name).suffix} and is not read: {remedy}"}

    @pytest.mark.parametrize(
        "name",
        [
            *("~$plan.docx", ".~lock.plan.odt#", "._plan.docx", "plan.tmp", "~WRL0001.TMP", "film.mp4.crdownload"),
            *("a.part", ".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX/plan.docx"),
        ],
    )
    def test_lock_files_and_files_of_the_system_are_passed_over_without_a_word(self, tmp_path: Path, name: str) -> None:
        write(tmp_path / "docs/a.txt", "x")
        write(tmp_path / "docs" / name, "x")
        for item in (tmp_path / "docs", tmp_path / "docs/**/*"):
            found = discover([item])
            assert (len(found.files), found.skipped) == (1, [])

    def test_names_that_only_look_like_those_are_reported(self, tmp_path: Path) -> None:
        for name in ("a.txt", "part.txt", "x.parts", "Thumbs.db.bak"):
            write(tmp_path / "docs" / name, "x")
        found = discover([tmp_path / "docs"])
        assert (len(found.files), set(reasons(found))) == (2, {"x.parts", "Thumbs.db.bak"})

    def test_links_in_a_folder_are_not_followed(self, contracts: Path, tmp_path: Path) -> None:
        outside = write(tmp_path / "outside/secret.txt", "x")
        (contracts / "file.txt").symlink_to(outside)
        (contracts / "folder").symlink_to(outside.parent)
        (contracts / "loop").symlink_to(contracts)
        (contracts / "broken.txt").symlink_to(tmp_path / "nowhere")
        found = discover([contracts])
        assert len(found.files) == 4
        assert set(reasons(found)) == {"file.txt", "folder", "loop", "broken.txt"}
        assert all(reason.startswith("is a link") for reason in reasons(found).values())

    def test_a_link_that_is_named_is_followed(self, contracts: Path, tmp_path: Path) -> None:
        (tmp_path / "latest").symlink_to(contracts)
        (tmp_path / "a-link.txt").symlink_to(contracts / "b.md")
        assert ids(discover([tmp_path / "latest"]))[-1] == "latest/b.md"
        assert ids(discover([tmp_path / "a-link.txt"])) == ["a-link.txt"]
        (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
        assert discover([tmp_path / "gone.txt"]).skipped[0].reason == "does not exist"

    def test_a_hard_link_to_a_file_elsewhere_is_not_read(self, contracts: Path, tmp_path: Path) -> None:
        # CVE-2025-6210.
        secret = write(tmp_path / "secret.txt", "x")
        (contracts / "innocent.txt").hardlink_to(secret)
        found = discover([contracts])
        assert len(found.files) == 4
        assert reasons(found)["innocent.txt"].startswith("has a hard link outside the folder")

    def test_hard_links_within_a_folder_are_read_once(self, contracts: Path) -> None:
        (contracts / "z.txt").hardlink_to(contracts / "a.txt")
        found = discover([contracts])
        assert len(found.files) == 4
        assert reasons(found)["z.txt"].startswith("is the same file as")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_pipes_sockets_and_devices_are_never_opened(self, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(contracts / "pipe.txt")
        monkeypatch.chdir(contracts)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket.txt")
            found = discover([contracts, contracts / "pipe.txt", "/dev/null"])
        assert len(found.files) == 4
        assert set(reasons(found)) == {"pipe.txt", "socket.txt", "null"}
        assert all(reason.startswith("is not a regular file") for reason in reasons(found).values())
        assert len(found.skipped) == 4

    def test_the_depth_is_limited(self, tmp_path: Path) -> None:
        # CVE-2024-12910, CVE-2025-5302: recursion exhausts the reader.
        root = tmp_path / "deep"
        deepest = root.joinpath(*["d"] * MAX_DEPTH)
        write(deepest / "too_deep.txt", "x")
        write(deepest.parent / "deep.txt", "x")
        found = discover([root])
        assert [ref.path.name for ref in found.files] == ["deep.txt"]
        assert found.skipped[0].reason.startswith(f"lies {MAX_DEPTH} folders deep")

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
    def test_a_folder_that_cannot_be_opened_is_reported(self, contracts: Path) -> None:
        (contracts / "2023").chmod(0)
        found = discover([contracts])
        (contracts / "2023").chmod(0o700)
        assert len(found.files) == 2
        assert reasons(found)["2023"].startswith("the folder cannot be opened")


pattern_parts = st.sampled_from(["**", "*", "a*", "*.txt", "[ab].txt", "c", "?.md"])


# Until Python 3.13 a final `**` of pathlib finds folders only.
@given(st.lists(pattern_parts, min_size=1, max_size=4).filter(lambda parts: parts[-1] != "**"))
def test_a_pattern_finds_what_pathlib_finds(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "globbed"
    if not root.exists():
        for name in ("a.txt", "b.txt", "c/a.txt", "c/ab.txt", "c/c/x.md", "a/c/b.txt", "a/a/a/a.md"):
            write(root / name, "x")
    ours = {root.joinpath(*names) for names, found in matching_entries(root, parts) if not isinstance(found, str)}
    assert ours == {path for path in root.glob("/".join(parts)) if path.is_file()}


def test_a_pattern_of_many_stars_is_no_slower_than_one(contracts: Path) -> None:
    found = [names for names, _ in matching_entries(contracts, [*["**"] * 200, "*.pdf"])]
    assert found == [("2023", "c.pdf")]


# ---- which files the inputs stand for, and under which ids -----------------------------------------------------------


class TestIds:
    def test_a_folder_gives_paths_from_its_parent_in_the_order_of_the_names(self, contracts: Path) -> None:
        found = discover([contracts])
        assert ids(found) == ["contracts/2023/c.pdf", "contracts/2023/q1/d.TXT", "contracts/a.txt", "contracts/b.md"]
        assert found.skipped == []

    def test_a_glob_gives_the_ids_that_its_folder_would(self, contracts: Path) -> None:
        assert ids(discover([f"{contracts}/**/*.txt"])) == ["contracts/2023/q1/d.TXT", "contracts/a.txt"]

    def test_the_way_a_folder_is_named_does_not_matter(self, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = ids(discover([contracts]))
        monkeypatch.chdir(contracts)
        for name in (".", "./", "../contracts", "2023/..", "**", "./**/*"):
            assert ids(discover([name])) == expected, name

    def test_of_two_files_with_one_id_the_second_gets_the_shortest_longer_path(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / folder / "report.txt", folder) for folder in ("q1", "q2", "x/q2")]
        assert ids(discover(paths)) == ["report.txt", "q2/report.txt", "x/q2/report.txt"]
        folders = [path.parent for path in paths]
        assert ids(discover(folders)) == ["q1/report.txt", "q2/report.txt", "x/q2/report.txt"]

    def test_longer_ids_are_reported_once_with_the_shorter_one(self, tmp_path: Path) -> None:
        for name in ("2023/reports/a.txt", "2024/reports/a.txt", "2024/reports/b.txt", "2023/reports/b.txt"):
            write(tmp_path / name, name)
        found = read_documents([tmp_path / "2023/reports", tmp_path / "2024/reports"])
        assert [document.id_ for document in found][2:] == ["2024/reports/a.txt", "2024/reports/b.txt"]
        (warning,) = found.warnings
        assert warning.path == str(tmp_path / "2024/reports/a.txt")
        assert warning.message == (
            "its document gets the id '2024/reports/a.txt', because 'reports/a.txt' is the id of another document, "
            "and 1 more have longer ids for this reason"
        )

    @given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(tuple), max_size=12))
    def test_ids_are_never_given_twice_and_always_end_like_the_path(self, paths: list[tuple[str, ...]]) -> None:
        taken: set[str] = set()
        for names in paths:
            ref = FileRef(Path("x"), "x", 1, "x", ids=tuple("/".join(names[-n:]) for n in range(1, len(names) + 1)))
            doc_id = ref.free_id(taken)
            assert doc_id not in taken
            assert "/".join(names).endswith(doc_id) or doc_id.startswith(f"{'/'.join(names)} (")
            shorter = ["/".join(names[-n:]) for n in range(1, doc_id.count("/") + 1)]
            assert all(other in taken for other in shorter)
            taken.add(doc_id)

    @pytest.mark.parametrize("typed", ["CAFÉ.TXT", "cafe\u0301.txt", "Cafe\u0301.Txt"])
    @pytest.mark.parametrize("listed", ["Café.txt", "Cafe\u0301.txt"])
    def test_other_spellings_of_a_name_give_the_same_id_where_they_mean_the_same_file(
        self, listed: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "Docs" / listed, "x")
        _ignore_spelling(monkeypatch, tmp_path)
        assert ids(discover([tmp_path / "Docs" / typed])) == [listed]
        assert ids(discover([tmp_path / "dOCS"])) == [f"Docs/{listed}"]
        assert [ref.path for ref in discover([tmp_path / "dOCS"]).files] == [tmp_path / "Docs" / listed]

    @pytest.mark.skipif(os.name == "nt", reason="control characters in names")
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
            ("README", "has no file extension"),
            ("missing/**/*.txt", "matches no file"),
            ("contracts/*.docx", "matches no file"),
            ("contracts/empty", "contains no file"),
            ("", "is not a path"),
            ("a\0b.txt", "is not a path"),
            ("https://example.org/a.pdf", "is a URL"),
            ("contracts/a.txt/b.txt", "cannot be accessed"),
            ("x" * 5000, "cannot be accessed"),
        ],
    )
    def test_what_is_no_file_is_reported_and_the_rest_goes_on(
        self, contracts: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
    ) -> None:
        (contracts / "empty").mkdir()
        write(contracts.parent / "README", "x")
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

    def test_the_same_file_named_twice_is_read_once(self, contracts: Path) -> None:
        found = discover([contracts, contracts / "a.txt", f"{contracts}/*.txt"])
        assert len(found.files) == 4
        assert [skipped.reason for skipped in found.skipped] == [
            f"is the same file as {contracts / 'a.txt'}, which is read once"
        ] * 2

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
    @pytest.mark.parametrize("read", [content_hash, lambda path: FileSource.open(path, ReadLimits())])
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path, read: Callable[[Path], object]) -> None:
        os.mkfifo(tmp_path / "pipe.txt")
        with pytest.raises(ReadError, match="not a regular file"):
            read(tmp_path / "pipe.txt")


def _ignore_spelling(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the system ignore case and Unicode forms in the names below a folder, as macOS does."""

    def folded(name: str) -> str:
        return unicodedata.normalize("NFC", name).casefold()

    def listed(path: Path) -> Path:
        names = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        here = folder
        for name in names:
            here /= next((one for one in real_listing(here) if folded(one) == folded(name)), name)
        return here if names else path

    real_listing = os.listdir
    for module, function in ((os, "stat"), (os, "lstat"), (os, "listdir"), (os.path, "lexists"), (os.path, "isdir")):
        real = getattr(module, function)
        patch.setattr(module, function, lambda path, *args, real=real, **kw: real(listed(Path(path)), *args, **kw))


# ---- names and titles that can be printed, logged and put into a prompt ----------------------------------------------


names = st.text(st.characters(), max_size=12)


@given(names, names)
def test_no_two_names_are_shown_alike(first: str, second: str) -> None:
    assert (printable(first) == printable(second)) == (first == second)


def test_the_folders_of_a_windows_path_are_separated_by_single_backslashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sep", "\\")
    assert printable_path("C:\\reports\\a\u202e.txt") == "C:\\reports\\a\\u202e.txt"


@given(names)
def test_a_shown_name_can_be_printed_and_stored(name: str) -> None:
    shown = printable(name)
    assert shown.encode() is not None
    assert shown.replace("\u200c", "").replace("\u200d", "").isprintable() or not shown.isascii()
    assert not set(shown) & set("\n\r\x1b\x00\u202e\u2066\u200b\ufeff\u2028")


@given(st.text(st.characters(), max_size=300), st.integers(1, 50))
def test_a_title_is_one_line_of_limited_length(text: str, limit: int) -> None:
    title = one_line(text, limit)
    assert len(title) <= limit
    assert title == " ".join(title.split())
    assert title.encode() is not None
    assert not set(title) & set("\x1b\x00\u202e\u200b")
