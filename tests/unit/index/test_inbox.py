"""Added files: names, collisions, removal and undo, and what an interruption leaves behind."""

from __future__ import annotations

import errno
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import InputError, NoSpaceError
from llama_index_contextual.index import files
from llama_index_contextual.index.inbox import FREE_BYTES, MAX_NAME_BYTES, Inbox, Upload, safe_path
from llama_index_contextual.index.project_file import WINDOWS_NAMES


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


def received(inbox: Inbox, name: str, content: str = "text", *, waits: str | None = None) -> Upload:
    upload = inbox.receive(name, waits=waits, max_bytes=1_000)
    upload.write(content.encode())
    upload.close()
    return upload


def add(inbox: Inbox, name: str, content: str = "text", user: str = "ada", **facts: Any) -> str:
    return inbox.add([received(inbox, name, content)], user, facts)[0]


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()
    }


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a.txt", "a.txt"),
        ("Reports/2024/a.PDF", "Reports/2024/a.PDF"),
        ("C:\\Users\\ada\\a.txt", "C_/Users/ada/a.txt"),
        ("/etc/a.txt", "etc/a.txt"),
        ("a:b?.txt", "a_b_.txt"),
        ("con.txt", "_con.txt"),
        ("LPT1.notes.md", "_LPT1.notes.md"),
        ("a\u202etxt.exe.pdf", "a_txt.exe.pdf"),
        ("a\x00b.txt", "a_b.txt"),
        ("folder ./a.txt", "folder/a.txt"),
        ("cafe\u0301.txt", "café.txt"),
        (".hidden/a.txt", "_.hidden/a.txt"),
        ("Ärger (2).docx", "Ärger (2).docx"),
    ],
)
def test_names_are_made_valid_on_every_system(name: str, stored: str) -> None:
    assert safe_path(name).as_posix() == stored


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../a.txt", "leads out of its folder"),
        ("a/../../b.txt", "leads out of its folder"),
        ("a/ .. /b.txt", "leads out of its folder"),
        ("..\\a.txt", "leads out of its folder"),
        ("", "hidden or temporary"),
        ("/", "hidden or temporary"),
        (".env.txt", "hidden or temporary"),
        ("~$plan.docx", "hidden or temporary"),
        ("film.mp4.part", "hidden or temporary"),
        ("a.exe", r"type \.exe"),
        ("archive.zip", "unpack it"),
        ("letter.doc", "save it as .docx"),
        ("noextension", "no file extension"),
        ("a/" * 20 + "a.txt", "nested folders"),
        ("a" * 2_000 + ".txt", "shorten it"),
    ],
)
def test_names_that_cannot_be_documents_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        safe_path(name)


@given(st.text(max_size=300).map(lambda name: f"{name}.txt"))
def test_no_name_leads_anywhere_else(name: str) -> None:
    try:
        path = safe_path(name)
    except InputError:
        return
    assert not path.is_absolute()
    assert ".." not in path.parts
    for part in path.parts:
        assert len(part.encode()) <= MAX_NAME_BYTES + 1
        assert part == part.strip()
        assert not part.endswith(".")
        assert not part.startswith(".")
        assert not set(part) & set('<>:"|?*\\/\0')
        assert part.split(".")[0].strip().casefold() not in WINDOWS_NAMES


# ---- adding ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_being_received_has_no_name_that_an_ingestion_reads(inbox: Inbox, tmp_path: Path) -> None:
    upload = inbox.receive("a.txt", waits=None, max_bytes=100)
    upload.write(b"half")
    (temporary,) = (tmp_path / "inbox").iterdir()
    assert temporary.name.startswith(".")
    assert temporary.name.endswith(".part")
    upload.discard()
    assert tree(tmp_path) == {}


def test_a_taken_name_gets_a_number_and_the_same_content_is_kept_once(inbox: Inbox, tmp_path: Path) -> None:
    names = [
        add(inbox, name, text) for name, text in (("a.txt", "one"), ("A.txt", "two"), ("a.txt", "one"), ("a.txt", "3"))
    ]
    assert names == ["ada/a.txt", "ada/A (2).txt", "ada/a.txt", "ada/a (3).txt"]
    assert tree(tmp_path / "inbox") == {"ada/a.txt": "one", "ada/A (2).txt": "two", "ada/a (3).txt": "3"}


def test_files_of_users_do_not_meet(inbox: Inbox, tmp_path: Path) -> None:
    add(inbox, "a.txt", "of ada"), add(inbox, "a.txt", "of eve", user="eve")
    assert tree(tmp_path / "inbox") == {"ada/a.txt": "of ada", "eve/a.txt": "of eve"}
    assert [one.path for one in inbox.added("eve")] == ["eve/a.txt"]


def test_too_large_and_empty_files_are_refused(inbox: Inbox, tmp_path: Path) -> None:
    upload = inbox.receive("a.txt", waits=None, max_bytes=3)
    with pytest.raises(InputError, match="more than 3 bytes"):
        upload.write(b"four")
    upload.discard()
    empty = inbox.receive("a.txt", waits=None, max_bytes=3)
    with pytest.raises(InputError, match="is empty"):
        empty.close()
    empty.discard()
    assert tree(tmp_path) == {}


def test_facts_are_logged_before_the_file_can_be_read(inbox: Inbox, tmp_path: Path, monkeypatch: Any) -> None:
    upload = received(inbox, "a.txt")
    logged: list[Any] = []

    def rename(source: Path, target: Path) -> None:
        logged.append(Inbox(tmp_path).facts())

    monkeypatch.setattr(files, "rename", rename)
    inbox.add([upload], "ada", {"group": "hr"})
    assert logged == [{str(inbox.folder / "ada/a.txt"): {"group": "hr"}}]


def test_a_linked_folder_leads_no_file_out_of_the_inbox(inbox: Inbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "inbox" / "ada").mkdir(parents=True)
    (tmp_path / "inbox" / "ada" / "link").symlink_to(outside)
    with pytest.raises(InputError, match="is a link"):
        add(inbox, "link/a.txt")
    assert tree(outside) == {}


def test_a_full_disk_is_named_and_leaves_no_file(inbox: Inbox, tmp_path: Path, monkeypatch: Any) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    upload = inbox.receive("a.txt", waits=None, max_bytes=100)
    monkeypatch.setattr(upload, "_file", Full())
    with pytest.raises(NoSpaceError, match="its disk is full"):
        upload.write(b"text")
    upload.discard()
    assert tree(tmp_path) == {}
    monkeypatch.setattr(files, "free_bytes", lambda path: FREE_BYTES + 10)
    inbox.require_space(10)
    with pytest.raises(NoSpaceError, match="no space for 11 more bytes"):
        inbox.require_space(11)


# ---- waiting for a confirmation --------------------------------------------------------------------------------------


def test_files_wait_outside_the_inbox_until_they_are_confirmed(inbox: Inbox, tmp_path: Path) -> None:
    for user in ("ada", "eve"):
        inbox.hold(received(inbox, "a.txt", user, waits=user), user)
    assert not (tmp_path / "inbox").exists()
    assert inbox.waiting("ada") == [("a.txt", 3)]
    with pytest.raises(InputError, match="confirm the new price"):
        inbox.confirm("ada", {}, inbox.stamp("nobody"))
    assert inbox.confirm("ada", {}, inbox.stamp("ada")) == ["ada/a.txt"]
    assert tree(tmp_path / "inbox") == {"ada/a.txt": "ada"}
    inbox.discard_waiting("eve")
    assert inbox.waiting("eve") == []
    assert inbox.added("eve") == []


# ---- removing and undoing --------------------------------------------------------------------------------------------


def test_a_removed_file_is_kept_and_comes_back_with_its_facts(inbox: Inbox, tmp_path: Path) -> None:
    path = add(inbox, "a.txt", "one", group="hr")
    inbox.remove([path], "ada")
    assert tree(tmp_path / "inbox") == {}
    assert inbox.removed_paths() == {str(inbox.folder / path)}
    inbox.undo(inbox.added("ada")[0].change.id, "ada")
    assert tree(tmp_path / "inbox") == {"ada/a.txt": "one"}
    assert inbox.removed_paths() == set()
    assert inbox.facts() == {str(inbox.folder / path): {"group": "hr"}}
    inbox.undo(inbox.added("ada")[0].change.id, "ada")
    assert tree(tmp_path / "inbox") == {}


def test_only_the_last_change_of_a_file_is_undone_and_only_by_its_user(inbox: Inbox) -> None:
    path = add(inbox, "a.txt")
    first = inbox.changes()[0].id
    for user in ("eve", ""):
        with pytest.raises(InputError, match="not among the files that you have added"):
            inbox.remove([path], user)
        with pytest.raises(InputError, match="cannot be undone"):
            inbox.undo(first, user)
    inbox.remove([path], "ada")
    with pytest.raises(InputError, match="cannot be undone"):
        inbox.undo(first, "ada")
    with pytest.raises(InputError, match="not among the files"):
        inbox.remove([path], "ada")


def test_a_name_that_was_taken_in_the_meantime_does_not_stop_an_undo(inbox: Inbox, tmp_path: Path) -> None:
    inbox.remove([add(inbox, "a.txt", "one")], "ada")
    removed = inbox.added("ada")[0].change.id
    add(inbox, "a.txt", "two")
    with pytest.raises(InputError, match="cannot be undone"):
        inbox.undo(removed, "ada")
    assert tree(tmp_path / "inbox") == {"ada/a.txt": "two"}


def test_a_log_with_an_unfinished_line_is_read_and_continued(inbox: Inbox, tmp_path: Path) -> None:
    add(inbox, "a.txt")
    with (tmp_path / "changes.jsonl").open("ab") as log:
        log.write(b'{"at": "2026')
    again = Inbox(tmp_path)
    assert [one.path for one in again.added("ada")] == ["ada/a.txt"]
    add(again, "b.txt", "other")
    assert [one.path for one in Inbox(tmp_path).added("ada")] == ["ada/a.txt", "ada/b.txt"]


def test_temporary_files_of_an_interrupted_process_are_removed_and_others_are_not(inbox: Inbox, tmp_path: Path) -> None:
    inbox.receive("a.txt", waits=None, max_bytes=9).write(b"half")
    inbox.receive("a.txt", waits="ada", max_bytes=9).write(b"half")
    (tmp_path / "inbox" / "film.part").write_text("of somebody else")
    Inbox(tmp_path).clean()
    assert tree(tmp_path) == {"inbox/film.part": "of somebody else"}


def test_what_was_removed_is_forgotten_with_its_names(inbox: Inbox, tmp_path: Path) -> None:
    kept, gone = add(inbox, "kept.txt", "one"), add(inbox, "gone.txt", "two")
    inbox.remove([gone], "ada")
    inbox.forget()
    assert "gone" not in str(tree(tmp_path))
    assert [one.path for one in inbox.added("ada")] == [kept]


def test_another_folder_takes_the_files(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    inbox = Inbox(tmp_path / "project", tmp_path / "papers")
    (tmp_path / "project").mkdir()
    assert add(inbox, "a.txt", user="") == "a.txt"
    assert tree(tmp_path / "papers") == {"a.txt": "text"}


def test_a_path_is_relative_to_the_folder(inbox: Inbox) -> None:
    assert PurePath(add(inbox, "Folder/a.txt")).parts == ("ada", "Folder", "a.txt")
