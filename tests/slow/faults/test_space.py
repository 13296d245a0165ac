"""Files that cannot grow: one error that names the file and says what to do, and the live version stays sound."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError, NoSpaceError
from llama_index_contextual.index import files
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import run
from tests.support.trees import write

if sys.platform == "win32":
    pytest.skip("Windows has no limit of file sizes for a process", allow_module_level=True)
import resource

OPERATIONS = ("ingest", "remove", "rollback", "update_config")


def under_a_limit(root: Path, folder: Path, operation: str, limit: int) -> str:
    """Return the type and the message of the error of an operation in a child process whose files cannot grow."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        project = ProjectManager(root).load("a")
        calls = {
            "ingest": lambda: project.ingest([folder]),
            "remove": lambda: project.remove("files/1.md"),
            "rollback": lambda: project.rollback(),
            "update_config": lambda: project.update_config(top_k=7),
        }
        message = "no error"
        try:
            calls[operation]()
        except (ContextualError, OSError, sqlite3.Error) as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(message).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        message = str(json.loads(pipe.read()))
    os.waitpid(child, 0)
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Project "a" with two versions, and a folder with more files than are in it."""
    project = ProjectManager(tmp_path / "root").create("a", ProjectConfig.local())
    for number in range(2):
        write(tmp_path / "files" / f"{number}.md", f"# Number {number}\n\nThe text of number {number}.")
        project.ingest([tmp_path / "files"])
    write(tmp_path / "files" / "large.md", "# Large\n\n" + "The pump runs dry at noon. " * 5_000)
    return tmp_path / "files"


@pytest.mark.parametrize("limit", [16, 20_000, 150_000])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_whose_files_cannot_grow_says_which_file_and_what_to_do(
    operation: str, limit: int, folder: Path, tmp_path: Path
) -> None:
    message = under_a_limit(tmp_path / "root", folder, operation, limit)
    project = ProjectManager(tmp_path / "root").load("a")
    if operation == "ingest" or limit == 16:
        assert message.startswith(f"NoSpaceError: {project.directory}{os.sep}"), message
        assert "a limit of file sizes" in message
        assert "Free space or raise the limit, then try again; the live version has not changed" in message
        assert project.versions()[-1].live
    else:
        assert message == "no error"
    assert project.verify().sound
    assert len(project.retrieve("number 0", mode="lexical").results) > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_same_error_on_the_command_line(
    code: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, fill: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(files.system, "write", refuse)
    result = run("remove", "a", "files/1.md", "--root", tmp_path / "root")
    assert (result.code, result.out) == (1, "")
    assert "manifest.json cannot be written: " in result.err
    assert "Free space or raise the limit, then try again" in result.err
    assert issubclass(NoSpaceError, OSError), "code that handles errors of the operating system handles it too"
