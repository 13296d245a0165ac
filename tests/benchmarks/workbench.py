"""Speed of the Workbench in a browser: `python -m tests.benchmarks.workbench --data DATA`.

A project of about 11,000 chunks is built from the conversations, the corpora and the contracts, with local settings and
small chunks; `--keep FOLDER` keeps it for later runs. Chromium then searches for the questions about the contracts, and
opens the page of a passage. This is repeated with several users at once, who read for some seconds before each step.
Their browsers run on the same machine as the server.

- *results*: from the submission of the form to the first paint of the results, without the time that the same query
  takes in `Project.retrieve`.
- *marked page*: from the click on a result to the end of the load event, when the image of the page has been loaded.
  Each page is opened for the first time, while the small pictures of the results are still being rendered.
- *users*: the same with several users at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote_plus

from playwright.async_api import Browser, Page, Request, async_playwright

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.slow.browser.harness import SWITCHES, Served, chromium, serve

NAME = "benchmark"
SETS = ("conversations/documents", "corpora/documents", "contracts/pdf")
CHUNK_SIZE, CHUNK_OVERLAP = 140, 14
RESULTS_MS, PAGE_MS, USERS = 300, 700, 8

_PAINTED = """() => new Promise((resolve) => {
  const read = () => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    const { loadEventEnd } = performance.getEntriesByType("navigation")[0];
    const image = document.querySelector(".sheet img");
    if (paint && loadEventEnd && (!image || (image.complete && image.naturalWidth))) {
      resolve({ paint: paint.startTime, load: loadEventEnd });
    } else {
      requestAnimationFrame(read);
    }
  };
  read();
})"""


def build(root: Path, data: Path) -> Project:
    """Return the project, which is built unless it exists."""
    manager = ProjectManager(root)
    if NAME not in manager.list():
        config = ProjectConfig.local(chunk_size=CHUNK_SIZE, chunk_overlap=CHUNK_OVERLAP)
        start = time.perf_counter()
        manager.create(NAME, config).ingest([data / name for name in SETS])
        print(f"built in {time.perf_counter() - start:.0f} s")
    return manager.load(NAME)


def questions(data: Path, count: int, seed: int) -> list[str]:
    """Return some questions on the contracts."""
    lines = (data / "contracts" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return random.Random(seed).sample([json.loads(line)["question"] for line in lines], count)


def query_times(project: Project, asked: Sequence[str]) -> list[float]:
    """Return the milliseconds that each query takes without the Workbench; the best of three."""
    times = []
    for question in asked:
        runs = []
        for _ in range(3):
            start = time.perf_counter()
            project.retrieve(question, explain=True)
            runs.append(1000 * (time.perf_counter() - start))
        times.append(min(runs))
    return times


class User:
    """A person with a browser of their own, who notes what goes wrong."""

    def __init__(self, page: Page, url: str) -> None:
        self._page, self._url = page, url
        self.problems: list[str] = []
        page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("response", lambda r: self.problems.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.on("requestfailed", self._failed)

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # what is still loading when the user goes on
            self.problems.append(f"{request.failure}: {request.url}")

    @classmethod
    async def new(cls, browser: Browser, url: str) -> User:
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        return cls(await context.new_page(), url)

    async def search(self, question: str, files: str = "") -> float:
        """Search, and return the milliseconds from the submission to the paint."""
        await self._page.goto(f"{self._url}/p/{NAME}/?file={quote_plus(files)}" if files else f"{self._url}/p/{NAME}/")
        await self._page.get_by_role("searchbox").fill(question)
        async with self._page.expect_navigation():
            await self._page.get_by_role("searchbox").press("Enter")
        await self._page.locator(".result").first.wait_for()
        return float((await self._page.evaluate(_PAINTED))["paint"])

    async def open(self, at: int) -> float | None:
        """Open a result that is on a page, and return the milliseconds until the image is there; None without one."""
        links = self._page.locator(".result-link")
        if at >= await links.count():
            return None
        async with self._page.expect_navigation():
            await links.nth(at).click()
        times = await self._page.evaluate(_PAINTED)
        if not await self._page.locator(".sheet img").count():
            return None
        return float(max(times["paint"], times["load"]))


async def measure(served: Served, project: Project, asked: Sequence[str], pause: float) -> dict[str, Any]:
    """Return the times of one user, and of several at once."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(SWITCHES))
        one = await User.new(browser, served.url)
        for question in asked[:3]:  # first imports, and the caches of the browser
            await one.search(question)
            await one.open(0)
        own = query_times(project, asked)
        searches = [await one.search(question) for question in asked]
        pages = []
        for question in asked:
            await one.search(question, "*.pdf")
            pages.append(await one.open(0))
        users = [await User.new(browser, served.url) for _ in range(USERS)]
        start = time.perf_counter()
        pauses = [random.Random(at) for at in range(USERS)]
        visits = await asyncio.gather(
            *(visit(user, asked[at:] + asked[:at], pauses[at], pause) for at, user in enumerate(users))
        )
        seconds = time.perf_counter() - start
        await browser.close()
    return {
        "query": own,
        "results": [whole - query for whole, query in zip(searches, own, strict=True)],
        "page": [value for value in pages if value is not None],
        "results of users": [value for results, _ in visits for value in results],
        "pages of users": [value for _, opened in visits for value in opened],
        "seconds": seconds,
        "problems": [*one.problems, *(problem for user in users for problem in user.problems)],
    }


async def visit(
    user: User, asked: Sequence[str], chance: random.Random, pause: float
) -> tuple[list[float], list[float]]:
    """Search and open a page a few times, and return the milliseconds of the searches and of the pages.

    Before each step, the user reads for a random time, which is distributed exponentially.
    """
    results, pages = [], []
    for question in asked[:6]:
        await asyncio.sleep(chance.expovariate(1 / pause) if pause else 0)
        results.append(await user.search(question, "*.pdf"))
        await asyncio.sleep(chance.expovariate(1 / pause) if pause else 0)
        opened = await user.open(1)
        pages += [] if opened is None else [opened]
    return results, pages


def row(name: str, times: Sequence[float], limit: int | None = None) -> str:
    """Return a line of the table."""
    ranked = sorted(times)
    limited = f"  (limit {limit})" if limit else ""
    high = ranked[min(len(ranked) - 1, round(0.95 * len(ranked)))]
    return f"{name:<24}{len(times):>6}{median(times):>9.0f}{high:>9.0f}{ranked[-1]:>9.0f}{limited}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with conversations, corpora and contracts")
    parser.add_argument("--keep", type=Path, help="folder that keeps the project for later runs")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=8, help="mean number of seconds that a user reads before a step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        project = build(root, options.data)
        info = project.info()
        print(f"{info.documents:,} documents, {info.chunks:,} chunks; milliseconds; seed {options.seed}")
        asked = questions(options.data, options.questions, options.seed)
        with serve([ProjectManager(root).load(NAME)], document_folders=[options.data / "contracts" / "pdf"]) as served:
            found = asyncio.run(measure(served, project, asked, options.pause))
    print(f"{'':<24}{'count':>6}{'median':>9}{'95 %':>9}{'highest':>9}")
    print(row("query alone", found["query"]))
    print(row("results, without it", found["results"], RESULTS_MS))
    print(row("marked page", found["page"], PAGE_MS))
    for name in ("results of users", "pages of users"):
        limit = PAGE_MS if "pages" in name else RESULTS_MS
        print(row(name.replace("users", f"{USERS} users"), found[name], limit if options.pause else None))
    print(f"{USERS} users, reading {options.pause:g} s: {found['seconds']:.1f} s; {len(found['problems'])} errors")
    for problem in found["problems"][:10]:
        print(f"  {problem}")


if __name__ == "__main__":
    main()
