"""Make the pictures of the README and of the Workbench again: `python docs/make_pictures.py [NAME…]`.

    diagram     overview.svg: from files to a passage
    chart       recall.svg: the figures in figures.json
    terminal    terminal.svg: a recording of the command line in a pseudo-terminal (Linux, macOS)
    screenshots search-view.png, marked-page.png, ask-view.png, add-view.png: views of the Workbench, also in dark
                colours (search-view-dark.png, …; extra `dev-all`, chromium)

`figures QUALITY STOCK` writes figures.json from files that the benchmarks write with `--out`. Without a name, the
script makes all pictures but the screenshots. SVG files have their own background and need neither fonts nor scripts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
FIGURES = ASSETS / "figures.json"
EXAMPLES = ROOT / "examples"
PROGRAM = "llama-index-contextual"
LIGHT = {"back": "#fbfdfc", "text": "#1c2b2a", "small": "#4a5957", "lane": "#00695c", "line": "#5b6b69"}
DARK = {"back": "#1b2023", "text": "#e4ecea", "small": "#a9b8b5", "lane": "#66c7b8", "line": "#9aa9a6"}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'


# ---- SVG -------------------------------------------------------------------------------------------------------------


def colours(shades: dict[str, str]) -> str:
    """Return the rules for one colour scheme."""
    return (
        f"text {{ fill: {shades['text']} }} .small {{ fill: {shades['small']} }} .lane {{ fill: {shades['lane']} }}"
        f" .back {{ fill: {shades['back']} }} .line {{ stroke: {shades['line']} }} .head {{ fill: {shades['line']} }}"
    )


def document(width: int, height: int, label: str, style: str, parts: Sequence[str]) -> str:
    """Return an SVG file with a background, a description for screen readers, and rules for light and dark."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{escape(label, quote=True)}">',
            f"<style>{style}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def line_of_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return one line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def write(name: str, text: str) -> None:
    """Write a picture and print its size."""
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / name).write_text(text, encoding="utf-8", newline="\n")
    print(f"{ASSETS.relative_to(ROOT)}/{name}: {len(text.encode()) / 1000:.0f} kB")


# ---- diagram ---------------------------------------------------------------------------------------------------------

DIAGRAM_STYLE = f"""
  text {{ font: 17px {FONT} }} .small {{ font-size: 15.5px }} .title {{ font-weight: 650 }} .lane {{ font-weight: 650 }}
  .line {{ fill: none; stroke-width: 1.6 }} .quote {{ font-style: italic }}
  .box {{ fill: #eef5f3; stroke: #5f8f87 }} .made {{ fill: #fdf0dc; stroke: #b8792a }}
  .store {{ fill: #e6edf8; stroke: #5877ad }}
  {colours(LIGHT)}
  @media (prefers-color-scheme: dark) {{
    {colours(DARK)}
    .box {{ fill: #24312f; stroke: #6aa79c }} .made {{ fill: #3b2c16; stroke: #d79a4a }}
    .store {{ fill: #1f2a3d; stroke: #7f9fd6 }}
  }}"""


def box(x: float, y: float, width: float, height: float, kind: str, lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return a box with centred lines, each a text and its class."""
    top = y + height / 2 - 11 * len(lines) + 16
    rows = [line_of_text(x + width / 2, top + 22 * at, text, of, "middle") for at, (text, of) in enumerate(lines)]
    return [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" class="{kind}"/>', *rows]


def arrow(*points: tuple[float, float]) -> str:
    """Return an arrow along points."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{path}" class="line" marker-end="url(#head)"/>'


def diagram() -> None:
    """Draw the way from files to a passage, with a chunk of the example contracts."""
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" class="head"/></marker></defs>'
    )
    parts = [
        marker,
        line_of_text(24, 34, "Ingest", "lane"),
        *box(
            24,
            48,
            186,
            92,
            "box",
            [("Files", "title"), ("PDF, Office, HTML,", "small"), ("mail, text, scans", "small")],
        ),
        arrow((210, 94), (246, 94)),
        *box(
            250, 48, 186, 92, "box", [("Segments", "title"), ("≤ 8,000 tokens,", "small"), ("cut at headings", "small")]
        ),
        arrow((436, 94), (472, 94)),
        *box(
            476,
            48,
            220,
            92,
            "box",
            [("Chunks", "title"), ("≤ 800 tokens, with exact", "small"), ("offsets and pages", "small")],
        ),
        arrow((586, 140), (586, 168)),
        '<rect x="24" y="172" width="672" height="128" rx="7" class="made"/>',
        '<text x="40" y="198"><tspan class="title">Context</tspan><tspan class="small" dx="10">from the'
        " structure (free) or by an LLM (paid for once, kept in a ledger)</tspan></text>",
        line_of_text(40, 222, "“Lot 2, the vehicle ramps at Stonnal Quay (Marrowgate Ferries):", "quote"),
        line_of_text(40, 244, "how soon a technician must attend after a breakdown.”", "quote"),
        '<path d="M40 255H680" class="line" stroke-dasharray="4 4"/>',
        '<text x="40" y="282"><tspan class="title">Chunk</tspan><tspan class="quote" dx="10">“… a technician on the'
        " spot within four hours of the call …”</tspan></text>",
        arrow((180, 300), (180, 330)),
        arrow((540, 300), (540, 330)),
        *box(24, 334, 326, 66, "store", [("FAISS", "title"), ("meaning of context and chunk", "small")]),
        *box(370, 334, 326, 66, "store", [("BM25", "title"), ("exact words of both, names, codes", "small")]),
        line_of_text(24, 436, "Search", "lane"),
        *box(
            24,
            450,
            232,
            92,
            "box",
            [("Question", "title"), ("How soon is a failed ramp", "small"), ("at Stonnal Quay repaired?", "small")],
        ),
        arrow((256, 496), (292, 496)),
        *box(
            296,
            450,
            156,
            92,
            "box",
            [("Two rankings", "title"), ("fused, ranked by", "small"), ("best sentence", "small")],
        ),
        arrow((374, 404), (374, 446)),
        arrow((452, 496), (488, 496)),
        *box(
            492,
            450,
            204,
            92,
            "made",
            [("Passage", "title"), ("file, section, page,", "small"), ("and why it was found", "small")],
        ),
    ]
    label = (
        "Files are split into segments and chunks. Each chunk gets a context, which says what it is about. Context and"
        " chunk are indexed by meaning (FAISS) and by words (BM25). A question is ranked by both; the result is a"
        " passage with its page."
    )
    write("overview.svg", document(720, 566, label, DIAGRAM_STYLE, parts))


# ---- chart -----------------------------------------------------------------------------------------------------------

ROWS = (
    ("No context", "stock", "none"),
    ("", "package", "none"),
    ("Structural context, free", "package", "structural"),
    ("LLM contexts, recorded", "stock", "llm"),
    ("Both (default with an LLM)", "package", "both"),
)
CUTS = ("R@5", "R@10", "R@20")
CHART_STYLE = f"""
  text {{ font: 16px {FONT} }} .small {{ font-size: 14.5px }} .title {{ font-weight: 650; font-size: 18px }}
  .grid {{ stroke: #d8e0de; stroke-width: 1 }} .package {{ fill: #0072b2; stroke: #0072b2 }}
  .stock {{ fill: #d55e00; stroke: #d55e00 }} .open {{ fill: none }} path.open, circle.open {{ stroke-width: 2.2 }}
  {colours(LIGHT)} .line {{ stroke-width: 2 }}
  .value {{ paint-order: stroke; stroke: {LIGHT["back"]}; stroke-width: 6; stroke-linejoin: round }}
  @media (prefers-color-scheme: dark) {{
    {colours(DARK)} .value {{ stroke: {DARK["back"]} }} .grid {{ stroke: #333d40 }}
    .package {{ fill: #56b4e9; stroke: #56b4e9 }}
    .stock {{ fill: #f28e3b; stroke: #f28e3b }} .open {{ fill: none }}
  }}"""


def figures(quality: Path, stock: Path) -> None:
    """Write figures.json from the ranks that two benchmarks have kept."""
    sys.path.insert(0, str(ROOT))
    from tests.benchmarks.quality import mean

    made = {"package": json.loads(quality.read_text("utf-8")), "stock": json.loads(stock.read_text("utf-8"))}
    rows = []
    for _, source, context in ROWS:
        ranks = made[source][f"codebase/{context}/hybrid"]
        values = {measure: round(mean(measure, ranks), 1) for measure in (*CUTS, "nDCG@10")}
        rows.append({"source": source, "context": context, "questions": len(ranks), **values})
    commands = [
        "python -m tests.benchmarks.quality --data DATA --sets codebase --out quality.json",
        "python -m tests.benchmarks.stock --data DATA --sets codebase --out stock.json",
        "python docs/make_pictures.py figures quality.json stock.json",
    ]
    write("figures.json", json.dumps({"commands": commands, "rows": rows}, indent=1) + "\n")


def marker(cut: str, x: float, y: float, source: str) -> str:
    """Return the mark of one measure: an open circle, a diamond or a filled circle."""
    if cut == "R@10":
        return f'<path d="M{x:.1f} {y - 7}l7 7l-7 7l-7 -7z" class="{source}"/>'
    return f'<circle cx="{x:.1f}" cy="{y}" r="6" class="{source}{" open" if cut == "R@5" else ""}"/>'


def chart() -> None:
    """Draw recall at 5, 10 and 20 for LlamaIndex's components and for the package."""
    data = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = {(row["source"], row["context"]): row for row in data["rows"]}
    left, right, top, step, low = 252, 722, 98, 54, 70

    def place(value: float) -> float:
        return left + (value - low) / (100 - low) * (right - left)

    bottom = top + step * len(ROWS) - 4
    parts = [line_of_text(24, 34, "Answers among the first 5, 10 and 20 results, in per cent", "title")]
    for number, (source, name) in enumerate((("stock", "LlamaIndex's components"), ("package", "this package"))):
        parts += [
            f'<rect x="{24 + 240 * number}" y="52" width="14" height="14" rx="3" class="{source}"/>',
            line_of_text(44 + 240 * number, 65, name),
        ]
    for number, cut in enumerate(CUTS):
        x = 450 + 100 * number
        parts += [
            marker(cut, x, 60, "line head" if cut != "R@5" else "line"),
            line_of_text(x + 13, 65, f"first {cut[2:]}"),
        ]
    for tick in range(low, 101, 10):
        x = place(tick)
        parts += [
            f'<path d="M{x:.1f} {top - 8}V{bottom}" class="grid"/>',
            line_of_text(x, bottom + 20, str(tick), "small", "middle"),
        ]
    for number, (name, source, context) in enumerate(ROWS):
        y, row = top + 22 + step * number, rows[source, context]
        xs = [place(row[cut]) for cut in CUTS]
        parts.append(
            line_of_text(
                24, y + 5 + (step / 2 if name and number + 1 < len(ROWS) and not ROWS[number + 1][0] else 0), name
            )
        )
        parts.append(f'<path d="M{xs[0]:.1f} {y}H{xs[-1]:.1f}" class="{source}" stroke-width="2.5"/>')
        parts.append(f'<circle cx="{xs[0]:.1f}" cy="{y}" r="6" class="back"/>')
        for cut, x in zip(CUTS, xs, strict=True):
            above = cut == "R@10"
            parts += [
                marker(cut, x, y, source),
                line_of_text(x, y - 11 if above else y + 21, f"{row[cut]:.1f}", "small value", "middle"),
            ]
    questions = data["rows"][0]["questions"]
    parts.append(
        line_of_text(
            24,
            bottom + 48,
            f"{questions} questions about source code; WordLlama embeddings, no key, no reranker",
            "small",
        )
    )
    label = "; ".join(
        f"{source}, context {context}: " + ", ".join(f"{cut} {row[cut]}" for cut in CUTS)
        for (source, context), row in rows.items()
    )
    write("recall.svg", document(758, bottom + 66, f"Recall in per cent. {label}", CHART_STYLE, parts))


# ---- terminal --------------------------------------------------------------------------------------------------------

COMMANDS = (
    f"{PROGRAM} create manuals --local",
    f"{PROGRAM} ingest manuals examples/data/*.pdf examples/data/*.md",
    f'{PROGRAM} search manuals "What does error TS-999 mean?" --top-k 2',
)
COLUMNS = 96
_CONTROL = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|([\r\n])|([^\x1b\r\n]+)")


def run_in_terminal(command: str, folder: Path) -> str:
    """Run a command in a pseudo-terminal and return what it wrote.

    Raises:
        SystemExit: The command failed, or the system has no pseudo-terminals.
    """
    try:
        import fcntl
        import pty
        import struct
        import termios
    except ImportError:
        raise SystemExit("A recording needs a pseudo-terminal: run this on Linux or macOS.") from None
    keep = {
        name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "LANG", "VIRTUAL_ENV") if name in os.environ
    }
    environment = {**keep, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "COLORTERM": "truecolor"}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    program = shlex.join([sys.executable, "-m", "llama_index_contextual"])
    process = subprocess.Popen(
        ["/bin/sh", "-c", command.replace(PROGRAM, program, 1)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    pieces = []
    with contextlib.suppress(OSError):  # Linux reports the end of a pseudo-terminal as an error
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    os.close(ours)
    output = b"".join(pieces).decode("utf-8")
    if process.wait():
        raise SystemExit(f"{command} failed:\n{output}")
    return output


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows at the end, with colours: progress bars have been overwritten."""
    rows: list[list[tuple[str, str]]] = [[]]
    x, y, style = 0, 0, ""
    for arguments, kind, control, text in (match.groups() for match in _CONTROL.finditer(output)):
        if text:
            for char in text:
                row = rows[y]
                row.extend([(" ", "")] * (x + 1 - len(row)))
                row[x] = (char, style)
                x += 1
        elif control == "\r":
            x = 0
        elif control == "\n":
            y += 1
            rows.extend([] for _ in range(y + 1 - len(rows)))
        elif kind == "m":
            style = "" if arguments in ("", "0") else f"{style}\x1b[{arguments}m"
        elif kind == "A":
            y = max(0, y - int(arguments or 1))
        elif kind == "K":
            del rows[y][0 if arguments == "2" else x :]
    return ["".join(f"\x1b[0m{of}{''.join(char for char, _ in cells)}" for of, cells in runs(row)) for row in rows]


def runs(row: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """Yield the runs of cells with the same style."""
    return groupby(row, key=lambda cell: cell[1])


def spans(line: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a line with colours as text and SVG attributes."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    console = Console(width=COLUMNS, color_system="truecolor", force_terminal=True)
    for segment in Text.from_ansi(line).render(console):
        style, attributes = segment.style, []
        if style and style.color and not style.color.is_default:
            attributes.append(f'fill="{style.color.get_truecolor(MONOKAI).hex}"')
        if style and style.bold:
            attributes.append('font-weight="700"')
        if style and style.italic:
            attributes.append('font-style="italic"')
        if style and style.dim:
            attributes.append('opacity="0.7"')
        if style and style.underline:
            attributes.append('text-decoration="underline"')
        if segment.text.strip("\n"):
            yield segment.text.strip("\n"), " ".join(attributes)


def terminal() -> None:
    """Record the commands with their real output, and write an animation that needs no script."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(EXAMPLES)
        recorded = [(command, screen(run_in_terminal(command, folder))) for command in COMMANDS]
    size, step, left, top = 13.5, 20, 22, 62
    width_of_letter = size * 0.602
    parts, at, seconds = [], 0, 0.6

    def appear(x: float, text: str, attributes: str, when: float) -> str:
        place = f'x="{left + x * width_of_letter:.1f}" y="{top + at * step}"'
        length = f'textLength="{len(text) * width_of_letter:.1f}" lengthAdjust="spacingAndGlyphs"'
        return (
            f'<text {place} {length} {attributes} class="a" style="animation-delay:{when:.2f}s"'
            f' xml:space="preserve">{escape(text)}</text>'
        )

    for command, lines in recorded:
        parts.append(appear(0, "$", 'fill="#a6e22e" font-weight="700"', seconds))
        words = re.findall(r"\S+\s*", command)
        column = 2
        for word in words:
            for start in range(0, len(word), 3):
                seconds += 0.07
                parts.append(appear(column, word[start : start + 3], "", seconds))
                column += len(word[start : start + 3])
        seconds, at = seconds + 0.6, at + 1
        while lines and not re.sub(r"\x1b\[[\d;]*m", "", lines[-1]).strip():
            lines.pop()
        for line in lines:
            x = 0
            for text, attributes in spans(line):
                parts.append(appear(x, text, attributes, seconds))
                x += len(text)
            seconds, at = seconds + 0.05, at + 1
        seconds, at = seconds + 1.4, at + 1
    style = f"""
  text {{ font: {size}px {MONO}; white-space: pre }} svg {{ fill: #f8f8f2 }} .back {{ fill: #1f2328; stroke: #4b535c }}
  .a {{ animation: appear 0.01s linear both }} @keyframes appear {{ from {{ opacity: 0 }} }}
  @media (prefers-reduced-motion: reduce) {{ .a {{ animation: none }} }}"""
    lights = [
        f'<circle cx="{24 + 20 * number}" cy="22" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    ]
    width = round(2 * left + COLUMNS * width_of_letter)
    label = "A recording of a terminal: " + "; ".join(COMMANDS)
    write("terminal.svg", document(width, top + at * step - 8, label, style, [*lights, *parts]))


# ---- screenshots -----------------------------------------------------------------------------------------------------

SEARCH = "What does error TS-999 mean?"
QUERY = "How high was Haldermoor's profit before tax in the third quarter of 2024?"
QUESTION = "How long must the pressure booster stand still after an emergency stop?"
ANSWER = (
    "After an emergency stop the unit “has to stand still for 10 minutes” [Source 1]. “After two emergency stops within"
    " 24 hours the unit remains out of service” [Source 1]. The repair “costs a lot of money” [Source 1]."
)
"""What the stand-in for an LLM writes; its last quotation is invented, so that the check has something to find."""
STAND_IN = "openai-like:stand-in"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
BROWSER_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


@contextlib.contextmanager
def workbench(folder: Path, llm_address: str, *, opens: Path | None = None) -> Iterator[str]:
    """Start the Workbench with an LLM at an address, and yield the address of the project.

    Args:
        folder: Working directory.
        llm_address: Address of the LLM.
        opens: Folder to open; otherwise, the examples are ingested and served.
    """
    program = [sys.executable, "-m", "llama_index_contextual"]
    environment = os.environ | {"OPENAI_BASE_URL": llm_address, "OPENAI_API_KEY": "any"}
    for arguments in (
        ["create", "utility", "--local", "--set", f"answer_llm={STAND_IN}"],
        ["ingest", "utility", "examples/data"],
    ):
        if opens is None:
            subprocess.run([*program, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = ["serve", "utility"] if opens is None else ["open", str(opens), "--name", "utility", "--no-browser"]
    command = [*program, *serving, "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            if server.poll() is not None:
                raise SystemExit(f"The Workbench ended with exit code {server.returncode}: see its message above.")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            time.sleep(0.5)
        else:
            raise SystemExit("The Workbench did not answer within a minute.")
        yield f"{address}/p/utility"
    finally:
        server.terminate()
        server.wait()


def screenshots() -> None:
    """Photograph the Workbench: the results of a search, the page of the best hit, and an answer.

    The answer comes from a stand-in for an LLM, a server on the loopback interface that sends `ANSWER`.

    Raises:
        SystemExit: playwright, chromium or the extra `ui` is missing.
    """
    browser_path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    sys.path.insert(0, str(ROOT))
    try:
        import starlette  # noqa: F401
        from playwright.sync_api import sync_playwright

        from tests.support.server import LoopbackProvider
    except ImportError as error:
        raise SystemExit(
            f'{error.name} is missing: pip install -e ".[dev-all]" installs what the screenshots need.'
        ) from None
    if browser_path is None:
        raise SystemExit(f"The screenshots need a browser: install one of {', '.join(CHROMIUM)}.")
    with TemporaryDirectory() as name, LoopbackProvider() as provider:
        folder = Path(name)
        (folder / "examples").symlink_to(EXAMPLES)
        with workbench(folder, provider.api_base) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            _search(page, address, SEARCH)
            _photograph(page, "search-view.png")
            _search(page, address, QUERY)
            page.click("a.result-link")
            _photograph(page, "marked-page.png")
            provider.enqueue(ANSWER)
            page.goto(f"{address}/ask")
            page.get_by_role("textbox", name="Question").fill(QUESTION)
            page.get_by_role("button", name="Ask", exact=True).click()
            page.get_by_text("The answer is complete.").wait_for(state="attached")
            _photograph(page, "ask-view.png")
            browser.close()
    with TemporaryDirectory() as name:
        folder, broken = Path(name) / "papers", Path(name) / "scan.pdf"
        folder.mkdir()
        broken.write_bytes(b"%PDF-1.7 without a page")
        files = [path for path in sorted((EXAMPLES / "data").iterdir()) if path.suffix in (".md", ".pdf", ".txt")]
        with workbench(Path(name), "", opens=folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.goto(f"{address}/add")
            page.set_input_files("#files", [*files, broken])
            page.click("#send")
            page.wait_for_selector(".added-skipped")
            _photograph(page, "add-view.png")
            browser.close()


def _search(page: Any, address: str, query: str) -> None:
    page.goto(f"{address}/")
    page.fill('input[name="q"]', query)
    page.press('input[name="q"]', "Enter")
    page.wait_for_selector("a.result-link")


def _photograph(page: Any, name: str) -> None:
    """Photograph a page in light and dark colours; the name of the dark picture ends in "-dark"."""
    page.wait_for_load_state("networkidle")
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        page.emulate_media(color_scheme=scheme)
        target = ASSETS / f"{Path(name).stem}{suffix}.png"
        page.screenshot(path=target)
        shrink(target)
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")
    page.emulate_media(color_scheme="light")


def shrink(file: Path) -> None:
    """Reduce a picture of a page to 256 colours, which its text and marks do not miss."""
    from PIL import Image

    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


PICTURES: dict[str, Any] = {"diagram": diagram, "chart": chart, "terminal": terminal, "screenshots": screenshots}


def main() -> None:
    """Make the named pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}, or: figures QUALITY STOCK")
    names = parser.parse_args().names or ["diagram", "chart", "terminal"]
    if names[0] == "figures" and len(names) == 3:
        figures(Path(names[1]), Path(names[2]))
        return
    if unknown := [name for name in names if name not in PICTURES]:
        parser.error(f"{unknown[0]!r} is unknown; the pictures are {', '.join(PICTURES)}")
    for name in names:
        PICTURES[name]()


if __name__ == "__main__":
    main()
