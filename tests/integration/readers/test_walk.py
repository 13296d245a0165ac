"""What is found below a folder, and what leads out of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers import discover
from llama_index_contextual.readers.discovery import MAX_DEPTH, FoundFile, Pattern, walk
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
            ".git": "is a hidden folder: name it directly to read it",
            ".secret.txt": "is a hidden file: name it directly to read it",
        }

    def test_a_hidden_file_that_is_named_is_read(self, contracts: Path) -> None:
        assert ids(discover([write(contracts / ".secret.txt", "x")])) == [".secret.txt"]

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
        assert discover([tmp_path / "gone.txt"]).skipped[0].reason == "is a link to a file that does not exist"

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
        assert reasons(found) == {
            "pipe.txt": "is a named pipe: only regular files are read",
            "socket.txt": "is a socket: only regular files are read",
            "null": "is a device: only regular files are read",
        }
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
    ours = {root.joinpath(*entry.parts) for entry in walk(root, Pattern(parts)) if isinstance(entry, FoundFile)}
    assert ours == {path for path in root.glob("/".join(parts)) if path.is_file()}


def test_two_final_stars_find_every_file_below(contracts: Path) -> None:
    assert ids(discover([f"{contracts}/**"])) == ids(discover([contracts]))


def test_a_pattern_of_many_stars_is_no_slower_than_one() -> None:
    pattern = Pattern(["**"] * 200 + ["x"])
    state = pattern.start()
    for _ in range(200):
        state = pattern.step(state, "y")
    assert not pattern.accepts(state)
    assert pattern.accepts(pattern.step(state, "x"))
