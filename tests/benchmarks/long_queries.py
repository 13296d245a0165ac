"""Ask a project with a megabyte by every door: `python -m tests.benchmarks.long_queries`.

Prints for each door and each query the seconds of the answer and by how much the peak memory of the process (VmHWM)
grew over that of the same process after two short questions; every line is a process of its own. The exit status is 1
where a query took 2 seconds or 200 MB. `--all` asks with everything in `QUERIES`, not with one letter, white space and
distinct words only. The command line is asked as a process too: by an argument, of which Linux takes 128 KB, and by a
line of standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document
from typer.testing import CliRunner

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

SIZE = 1_000_000
SHORT = "How long does food keep?"
MOST_SECONDS, MOST_MEGABYTES = 2.0, 200.0
_ARGUMENT = 128 * 1024 - 1  # MAX_ARG_STRLEN of Linux, with the zero behind it


def words(number: int = 200_000) -> Iterator[str]:
    """Yield different words of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return map("".join, itertools.islice(itertools.product("bdfklmnprst", letters, letters, letters, letters), number))


def _repeated(unit: str) -> Callable[[int], str]:
    return lambda size: (unit * (size // len(unit) + 1))[:size]


QUERIES: dict[str, Callable[[int], str]] = {
    "letter": _repeated("w"),
    "spaces": _repeated(" "),
    "words": lambda size: " ".join(words())[:size],
    "spaced": lambda size: "pump" + " " * (size - 9) + "valve",
    "capitals": _repeated("A"),
    "digits": _repeated("7"),
    "punctuation": _repeated("!?."),
    "initials": _repeated("A."),
    "hyphens": _repeated("a-"),
    "camel": _repeated("aB"),
    "marks": lambda size: ("a" + "\u0315\u0300" * size)[:size],
    "quotes": _repeated("\"'"),
    "brackets": _repeated("[]("),
    "chinese": lambda size: "".join(chr(0x4E00 + at % 20_000) for at in range(size)),
    "ligatures": _repeated("\ufdfa"),
    "surrogates": _repeated("\ud800"),
    "days": _repeated("today "),
    "dates": _repeated("1/1/2020 "),
    "thousands": _repeated("1,000"),
    "addresses": _repeated("a@"),
    "sides": _repeated("compare a "),
    "versus": _repeated("a vs "),
    "weather": lambda size: ("what is the weather" + " in a" * size)[: size - 2] + "\nx",
    "poem": lambda size: ("write me a poem" + "!" * size)[: size - 2] + "\nx",
}
ASKED = ("letter", "spaces", "words")
"""The queries that are asked unless all are."""


def build(root: Path, chunks: int = 2_000) -> Project:
    """Return a project whose texts hold many of the words that are asked for."""
    known, chance = list(words()), random.Random(7)
    texts = (" ".join(chance.choices(known, k=60)) for _ in range(chunks))
    project = ProjectManager(root).create("p", ProjectConfig.local(context="none", acronyms=True))
    project.ingest([Document(id_=f"{at}", text=text) for at, text in enumerate(texts)])
    return project


# ---- doors -----------------------------------------------------------------------------------------------------------


def _retrieve(project: Project, query: str) -> str:
    return repr(project.retrieve(query, explain=True))


def _semantic(project: Project, query: str) -> str:
    return repr(project.retrieve(query, mode="semantic"))


def _engine(project: Project, query: str) -> str:
    engine = project.as_query_engine(llm=MockLLM(max_tokens=20), guards=True, intents=True, reference_date=_today())
    return str(engine.query(query))


def _chat(project: Project, query: str) -> str:
    chat = project.as_chat_engine(llm=MockLLM(max_tokens=20), reference_date=_today())
    return f"{chat.chat(SHORT)} {chat.chat(query)} {chat.chat('And water?')}"


def _agno(project: Project, query: str) -> str:
    from llama_index_contextual.agno import ContextualKnowledge

    return str([document.content for document in ContextualKnowledge(project).retrieve(query)])


def _mcp(project: Project, query: str) -> str:
    from mcp import Client

    from llama_index_contextual.mcp import make_server

    async def ask() -> str:
        async with Client(make_server([project])) as client:
            return str(await client.call_tool("search", {"query": query}))

    return asyncio.run(ask())


def _command(project: Project, query: str) -> str:
    from llama_index_contextual.cli.app import app

    return CliRunner().invoke(app, ["search", project.name, query, "--root", str(project.directory.parent)]).output


def _today() -> object:
    from datetime import date

    return date(2026, 11, 22)


DOORS: dict[str, Callable[[Project, str], str]] = {
    "retrieve": _retrieve,
    "semantic": _semantic,
    "engine": _engine,
    "chat": _chat,
    "agno": _agno,
    "mcp": _mcp,
    "command line": _command,
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def peak() -> float:
    """Return the most memory that this process has had, in megabytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1_000


def measure(root: Path, door: str, name: str) -> dict[str, float | str]:
    """Ask a short question, then the long one, and return what the second took."""
    project, query = ProjectManager(root).load("p"), QUERIES[name](SIZE)
    _asked(door, project, SHORT)
    _asked(door, project, "pump " * 200)
    before, start, used = peak(), time.perf_counter(), time.process_time()
    message = _asked(door, project, query)
    seconds, processor = time.perf_counter() - start, time.process_time() - used
    return {"seconds": seconds, "processor": processor, "megabytes": peak() - before, "said": message[:60]}


def _asked(door: str, project: Project, query: str) -> str:
    try:
        return DOORS[door](project, query)
    except ContextualError as error:
        return f"{type(error).__name__}: {error}"


def command_lines(root: Path) -> None:
    """Print how long whole processes take for what an argument and a line of standard input can hold."""
    for label, command, inputs in (
        ("search, short", ["search", "p", SHORT], ""),
        ("search, an argument of 128 KB", ["search", "p", "w" * _ARGUMENT], ""),
        ("chat, short", ["chat", "p"], f"{SHORT}\n"),
        ("chat, a line of 1 MB", ["chat", "p"], f"{QUERIES['words'](SIZE)}\n"),
    ):
        whole = [sys.executable, "-m", "llama_index_contextual", *command, "--root", str(root)]
        start = time.perf_counter()
        ended = subprocess.run(whole, input=inputs, capture_output=True, text=True, check=False)
        print(f"{label:<30} {time.perf_counter() - start:6.2f} s in all, exit status {ended.returncode}")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="Ask with every kind of query.")
    parser.add_argument("--door", choices=DOORS, action="append")
    parser.add_argument("--one", nargs=3, metavar=("ROOT", "DOOR", "QUERY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(Path(options.one[0]), *options.one[1:])))
        return 0
    too_much = 0
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        print("door          query         answered, processor, peak memory")
        for door, name in itertools.product(options.door or DOORS, QUERIES if options.all else ASKED):
            whole = [sys.executable, "-m", "tests.benchmarks.long_queries", "--one", folder, door, name]
            ended = subprocess.run(whole, capture_output=True, text=True, check=False)
            if ended.returncode:
                print(f"{door:<14}{name:<14} exit status {ended.returncode}: {ended.stderr[-200:]}")
                too_much += 1
                continue
            row = json.loads(ended.stdout.splitlines()[-1])
            over = row["seconds"] >= MOST_SECONDS or row["megabytes"] >= MOST_MEGABYTES
            too_much += over
            figures = f"{row['seconds']:6.2f} s {row['processor']:6.2f} s {row['megabytes']:8.1f} MB"
            print(f"{door:<14}{name:<14}{figures}{'  TOO MUCH' if over else ''}", flush=True)
        command_lines(Path(folder))
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
