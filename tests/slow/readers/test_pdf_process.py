"""The child process that parses PDFs: the same answers, and no harm from what happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.files import ReadLimits
from llama_index_contextual.readers.process import ParserProcess
from tests.support.pdf_files import RawPdf, bomb, lines, pdf_of, show


@pytest.fixture(scope="module")
def worker() -> Iterator[ParserProcess]:
    with closing(ParserProcess()) as one:
        yield one


def rich() -> bytes:
    pdf = pdf_of(lines([f"Über {word} €", "more"]) + show(290, 20, str(at)) for at, word in enumerate("abcd", 1))
    mark = pdf.add(b"")
    root = pdf.add(b"<</Type/Outlines/First %d 0 R/Last %d 0 R/Count 1>>" % (mark, mark))
    pdf.objects[mark - 1] = b"<</Title(more)/Parent %d 0 R/Dest[%d 0 R/Fit]>>" % (root, pdf.kids[1])
    pdf.page(b"")
    pdf.catalog = b"/Outlines %d 0 R" % root
    pdf.trailer = b"/Info %d 0 R" % pdf.add(b"<</Title(A title)>>")
    return pdf.data()


def test_memory_is_limited(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="this system cannot limit memory")
    if sys.platform == "darwin":
        pytest.skip("macOS does not keep this limit")
    pdf = RawPdf()
    pdf.page(pdf.stream(bomb(49_000_000), b"/Filter[/FlateDecode/FlateDecode]"))
    path = tmp_path / "big.pdf"
    path.write_bytes(pdf.data())

    with (
        closing(ParserProcess(max_memory=1_000_000)) as small,
        pytest.raises(ReadError, match=r"MemoryError|memory|crashed"),
    ):
        small.read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs the priorities of POSIX")
def test_the_child_gives_way_to_others_if_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(rich())
    with closing(ParserProcess(niceness=4)) as nice:
        nice.read(path)
        process = nice._process
        assert process is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 4)


STUCK = "tests.integration.readers.stuck_child"


@pytest.fixture
def odd() -> Iterator[ParserProcess]:
    """A parser whose child hangs, crashes or leaves when the name of the file says so."""
    with closing(ParserProcess(STUCK)) as one:
        yield one


SOON = ReadLimits(max_seconds=0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hangs.pdf", "parsing took longer than 0.05 seconds and was stopped"),
        ("counts.pdf", "parsing took longer than 0.05 seconds and was stopped"),
        ("crashes.pdf", "parsing crashed (SIGSEGV)"),
        ("leaves.pdf", f"parsing crashed (exit code 3: OSError: [2Jno paper{'!' * 179})"),
    ],
)
def test_whatever_happens_to_the_child_is_reported_and_the_next_file_is_read(
    odd: ParserProcess, name: str, reason: str
) -> None:
    first = odd.read(Path("fine.pdf")).text
    with pytest.raises(ReadError) as caught:
        odd.read(Path(name), limits=SOON if name in ("hangs.pdf", "counts.pdf") else ReadLimits())

    assert (caught.value.path, caught.value.reason) == (name, reason)
    assert odd.read(Path("fine.pdf")).text != first


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_error_in_the_callback_for_pages_is_raised_and_the_next_file_is_read() -> None:
    def fail(path: Path, done: int, total: int) -> None:
        raise OSError(f"{done} of {total} pages of {path}")

    with closing(ParserProcess(STUCK, on_page=fail)) as worker:
        with pytest.raises(OSError, match=r"1 of 9 pages of counts\.pdf"):
            worker.read(Path("counts.pdf"))
        assert worker.read(Path("fine.pdf")).text


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_what_was_said_about_the_file_before_is_not_why_the_child_crashed(odd: ParserProcess) -> None:
    assert odd.read(Path("fine.pdf")).text
    with pytest.raises(ReadError) as caught:
        odd.read(Path("crashes.pdf"))
    assert caught.value.reason == "parsing crashed (SIGSEGV)"


def test_one_child_serves_many_files_and_ends_with_the_worker(odd: ParserProcess) -> None:
    ids = {odd.read(Path("fine.pdf")).text for _ in range(3)}
    odd.close()

    assert len(ids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(ids.pop()), 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupt_is_for_the_parent_and_does_not_end_the_child(tmp_path: Path, worker: ParserProcess) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_of([lines(["Text"])]).data())
    worker.read(path)
    child = worker._process
    assert child is not None
    os.kill(child.pid, signal.SIGINT)

    assert worker.read(path).text == "Text"
    assert worker._process is child


def test_what_an_interrupted_child_still_answers_is_not_taken_for_the_next_file(
    odd: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = odd.read(Path("fine.pdf")).text

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ParserProcess, "_talk", interrupt)
        with pytest.raises(KeyboardInterrupt):
            odd.read(Path("fine.pdf"))
    assert odd.read(Path("fine.pdf")).text != first


def test_the_child_does_without_llama_index() -> None:
    code = (
        "import sys, llama_index_contextual.readers.process; print([name for name in sys.modules if '.' not in name])"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout

    assert "'llama_index_contextual'" in names
    assert "'llama_index'" not in names


def test_the_child_gets_no_keys(odd: ParserProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "MY_SECRET", "DB_PASSWORD"):
        monkeypatch.setenv(name, "hidden")

    environment = odd.read(Path("fine.pdf")).metadata
    assert "hidden" not in environment.values()
    assert "PATH" in environment
