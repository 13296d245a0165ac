"""A process that may not open more files says so and what to do; nothing is damaged."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import OpenFilesError
from llama_index_contextual.project.manager import ProjectManager
from tests.support.documents import write_texts

resource = pytest.importorskip("resource", reason="this system has no limits on processes")
if not Path("/proc/self/fd").is_dir():
    pytest.skip("this system does not list the open files of a process", allow_module_level=True)

QUESTION = "Which pump runs dry?"


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Let this process open only a few more files."""
    gc.collect()  # otherwise, objects of other tests could close their files in the meantime
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]  # fill the gaps between the open files
    limit = max(taken) + 1 + free
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with a project of three parts."""
    root = tmp_path_factory.mktemp("root")
    project = ProjectManager(root).create("p", ProjectConfig.local(context="none", keep_versions=9))
    for at in range(3):
        project.ingest([Document(id_=f"{at}", text=f"Pump {at} runs dry near the wall. " * 6)])
    return root


CALLS: dict[str, Callable[[ProjectManager, Path], object]] = {
    "load": lambda manager, folder: manager.load("p"),
    "create": lambda manager, folder: manager.create("q", ProjectConfig.local()),
    "search": lambda manager, folder: manager.load("p").retrieve(QUESTION),
    "info": lambda manager, folder: manager.load("p").info(),
    "cost": lambda manager, folder: manager.load("p").cost(),
    "verify": lambda manager, folder: manager.verify("p").problems,
    "estimate": lambda manager, folder: manager.load("p").estimate([folder]),
    "ingest": lambda manager, folder: manager.load("p").ingest([folder]),
    "rollback": lambda manager, folder: manager.load("p").rollback("v000001"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of event loops without a socket
@pytest.mark.parametrize("name", CALLS)
def test_the_error_says_what_to_do_and_the_project_stays_sound(name: str, root: Path, tmp_path: Path) -> None:
    folder, manager = write_texts(tmp_path / "texts"), ProjectManager(root)
    messages = set()
    for free in range(12):
        try:
            with few_files(free):
                CALLS[name](manager, folder)
            break
        except OpenFilesError as error:
            messages.add(str(error))
        assert manager.verify("p").sound
    assert messages == {
        "Too many files are open: raise the limit (`ulimit -n 1024`), or close files and connections, then try again;"
        " paid results are kept."
    }
    assert manager.load("p").retrieve(QUESTION).results
