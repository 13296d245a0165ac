"""Draw the diagrams of the concept pages as SVG files: `python docs/draw_diagrams.py`.

Each file has its own colours for light and dark pages and needs no font or script. The drawings are 560 units wide, so
that they can be read on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from llama_index_contextual.search.rank import FusionSettings
from llama_index_contextual.search.spotlight import COMPARED

ASSETS = Path(__file__).resolve().parent / "assets"
WIDTH = 560

_STYLE = """
  text { font: 14px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1c2b2a }
  .title { font-weight: 600 } .small { font-size: 12.5px; fill: #4a5957 } .lane { font-weight: 600; fill: #00695c }
  .back { fill: #fbfdfc } .box { fill: #eef5f3; stroke: #5f8f87; stroke-width: 1.2 }
  .paid { fill: #fdf0dc; stroke: #b8792a } .store { fill: #e6edf8; stroke: #5877ad }
  .line { fill: none; stroke: #5b6b69; stroke-width: 1.5 } .head { fill: #5b6b69 }
  .bar { fill: #cfe3de; stroke: #5f8f87 } .bar2 { fill: #9cc8be; stroke: #3f7469 }
  .mark { fill: #f0b45c; stroke: #b8792a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4ecea } .small { fill: #a9b8b5 } .lane { fill: #66c7b8 }
    .back { fill: #1b2023 } .box { fill: #24312f; stroke: #6aa79c }
    .paid { fill: #3b2c16; stroke: #d79a4a } .store { fill: #1f2a3d; stroke: #7f9fd6 }
    .line { stroke: #9aa9a6 } .head { fill: #9aa9a6 }
    .bar { fill: #2f4a45; stroke: #6aa79c } .bar2 { fill: #3f6f66; stroke: #8fd0c3 }
    .mark { fill: #8a5f20; stroke: #d79a4a }
  }
"""


@dataclass
class Drawing:
    """A drawing that grows by boxes, arrows and texts.

    Attributes:
        height: Height in units.
        label: Description for screen readers.
        parts: SVG elements drawn so far.
    """

    height: int
    label: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write one line."""
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def rect(self, x: float, y: float, w: float, h: float, kind: str, radius: int = 6) -> None:
        """Draw a rectangle."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}" class="{kind}"/>')

    def box(self, x: float, y: float, w: float, title: str, lines: Sequence[str] = (), kind: str = "") -> float:
        """Draw a box with a title and small lines, and return the y of its lower edge."""
        height = 30 + 18 * len(lines)
        self.rect(x, y, w, height, f"box {kind}".strip())
        self.text(x + w / 2, y + 20, title, "title", "middle")
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + 38 + 18 * number, line, "small", "middle")
        return y + height

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "") -> None:
        """Draw a straight arrow, with a label at its right if it points down, above it otherwise."""
        self.parts.append(f'<path d="M{x1} {y1}L{x2} {y2}" class="line" marker-end="url(#head)"/>')
        if label and x1 == x2:
            self.text(x1 + 8, (y1 + y2) / 2 + 4, label, "small")
        elif label:
            self.text((x1 + x2) / 2, min(y1, y2) - 5, label, "small", "middle")

    def svg(self) -> str:
        """Return the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}"'
            f' height="{self.height}" role="img" aria-label="{escape(self.label, quote=True)}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker></defs>'
        )
        back = f'<rect width="{WIDTH}" height="{self.height}" rx="10" class="back"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", marker, back, *self.parts, "</svg>", ""])


def way() -> Drawing:
    """The way of the data: ingest at the left, search at the right, a version between them."""
    d = Drawing(
        610,
        "Files become Documents, segments, chunks with context, vectors and terms, and a version on disk;"
        " a question is ranked twice in the version; the rankings are fused, and the first hits are ranked again by"
        " their best sentence.",
    )
    d.text(30, 34, "Ingest", "lane")
    d.text(310, 34, "Search", "lane")
    steps = [
        ("Files", ["PDF, Office, HTML, mail, scans"], ""),
        ("Documents", ["text with pages, headings, tables"], ""),
        ("Segments", ["up to 8,000 tokens"], ""),
        ("Chunks", ["up to 800 tokens"], ""),
        ("Chunks with context", ["from the structure, or by an LLM"], "paid"),
        ("Vectors and terms", ["embedding model, analyzer"], "paid"),
    ]
    y = 50.0
    for title, lines, kind in steps:
        bottom = d.box(20, y, 235, title, lines, kind)
        d.arrow(137, bottom, 137, bottom + 24)
        y = bottom + 26
    d.box(
        20, y, 520, "Version on disk", ["FAISS and BM25 indexes, documents, chunks: replaced, never changed"], "store"
    )
    top = y
    ys = 50.0
    bottom = d.box(310, ys, 230, "Question", ["words, filters, the conversation"])
    d.arrow(370, bottom, 370, 124)
    d.arrow(480, bottom, 480, 124)
    d.box(310, 126, 110, "Semantic", ["FAISS"])
    d.box(430, 126, 110, "Lexical", ["BM25"])
    for start, side, end in ((f"296 {top}", "", "308"), (f"541 {top + 24}", "H549", "542")):
        d.parts.append(f'<path d="M{start}{side}V150H{end}" class="line" marker-end="url(#head)"/>')
    d.text(425, top - 8, "both rankings read it", "small", "middle")
    d.arrow(365, 174, 400, 200)
    d.arrow(485, 174, 450, 200)
    ys = 202.0
    last = [
        ("Fusion", "both rankings, and the document", ""),
        ("Best sentence", "of the first hits; or a reranker", ""),
        ("Passages", "source, evidence, confidence", ""),
        ("Answer", "by an LLM; citations are checked", "paid"),
    ]
    for title, line, kind in last:
        bottom = d.box(310, ys, 230, title, [line], kind)
        ys = bottom + 22
        if title != "Answer":
            d.arrow(425, bottom, 425, ys - 2)
    d.rect(20, 574, 16, 16, "box paid", 3)
    d.text(44, 587, "costs money with a paid model; contexts and vectors are kept in the ledger", "small")
    return d


def segments() -> Drawing:
    """A document, its segments and its chunks."""
    d = Drawing(
        368,
        "A document is cut into overlapping segments, a segment into overlapping chunks; the LLM reads the"
        " segment and the chunk and writes a context for the chunk.",
    )
    d.text(20, 34, "Document: 20,000 tokens", "title")
    d.rect(20, 44, 520, 22, "bar", 4)
    d.text(20, 98, "Segments of up to 8,000 tokens; two neighbours share about 800", "title")
    d.rect(20, 108, 208, 20, "bar2", 4)
    d.rect(207, 132, 208, 20, "bar2", 4)
    d.rect(394, 108, 146, 20, "bar2", 4)
    d.text(20, 186, "Chunks of up to 800 tokens; two neighbours share about 80", "title")
    for number in range(10):
        d.rect(20 + number * 20.6, 196 + 22 * (number % 2), 22, 18, "mark" if number == 4 else "bar", 3)
    d.text(236, 214, "of the first segment", "small")
    d.box(20, 276, 150, "Segment", ["the chunk's place"])
    d.box(190, 276, 110, "Chunk", ["the passage"], "paid")
    d.text(178, 300, "+", "title", "middle")
    d.arrow(300, 300, 352, 300, "LLM")
    d.box(354, 276, 186, "Context", ["one or two sentences"])
    d.parts.append('<path d="M113 216V238L240 274" class="line" marker-end="url(#head)"/>')
    d.text(20, 350, "Embedded and indexed: context, then the text of the chunk", "small")
    return d


def cache() -> Drawing:
    """Draw the steps before and after a paid call."""
    d = Drawing(
        420,
        "The prompt of a chunk is hashed. If the ledger contains the key, its context is used. Otherwise, the"
        " budget is checked, the LLM is called, and the reply is committed to the ledger.",
    )
    d.box(20, 24, 250, "Prompt and model", ["template, header, segment, chunk"])
    d.arrow(145, 72, 145, 102)
    d.box(20, 104, 250, "Key", ["hash of these, without the opening"])
    d.arrow(145, 152, 145, 182)
    d.box(20, 184, 250, "In the ledger?", kind="store")
    d.arrow(270, 199, 338, 199, "yes")
    d.box(340, 176, 200, "Context", ["no call, nothing is paid"])
    d.arrow(145, 214, 145, 250, "no")
    d.box(20, 252, 250, "Within max_cost?")
    d.arrow(270, 267, 338, 267, "no")
    d.box(340, 244, 200, "The run stops", ["replies so far are kept"])
    d.arrow(145, 282, 145, 318, "yes")
    d.box(20, 320, 250, "LLM call", ["paid once"], "paid")
    d.arrow(270, 344, 338, 344, "reply")
    d.box(340, 320, 200, "Commit to the ledger", ["before anything else"], "store")
    d.text(20, 402, "Embeddings (except WordLlama's) and pages read by OCR are stored too.", "small")
    return d


def versions() -> Drawing:
    """How a version becomes live."""
    d = Drawing(
        486,
        "Versions list parts, and share them. A new version adds a part with what is new, is verified, and made live by"
        " replacing one small file; readers move to it, and earlier versions stay for a rollback.",
    )
    d.box(20, 30, 150, "p000001", ["all documents at first"], "store")
    d.box(205, 30, 150, "p000002", ["one document"], "store")
    d.box(390, 30, 150, "p000003", ["two documents"], "paid")
    d.arrow(60, 148, 60, 82)
    d.arrow(230, 148, 125, 82)
    d.arrow(290, 148, 280, 82)
    d.arrow(415, 148, 160, 82)
    d.arrow(450, 148, 325, 82)
    d.arrow(490, 148, 475, 82)
    d.box(20, 150, 150, "v000001", ["kept for a rollback"], "store")
    d.box(205, 150, 150, "v000002", ["live"], "store")
    d.box(390, 150, 150, "v000003", ["being built"], "paid")
    d.box(205, 260, 150, "CURRENT", ["v000002", "newest v000002", "and a checksum"])
    d.arrow(280, 258, 280, 202)
    d.arrow(465, 200, 465, 258)
    d.box(390, 260, 150, "Check", ["sizes, headers, counts"])
    d.arrow(388, 284, 358, 284)
    d.text(465, 330, "then the file is", "small", "middle")
    d.text(465, 346, "replaced in one step", "small", "middle")
    d.box(20, 406, 520, "Readers", ["a search keeps the version it began with; the next one opens the live one"])
    d.arrow(280, 404, 280, 348)
    return d


def fusion() -> Drawing:
    """How two rankings become one."""
    semantic, lexical = FusionSettings.weights
    documents = FusionSettings.document_weight
    d = Drawing(
        548,
        f"The scores of both rankings are measured in standard deviations, weighted by {semantic} and {lexical}, and"
        " added. The"
        " weight of the document, its best chunk and, for the first hits, the best sentence are added too; confidence"
        " comes from the best passage and the best sentence.",
    )
    d.box(20, 24, 250, "Semantic ranking", ["cosine of question and chunk"])
    d.box(290, 24, 250, "Lexical ranking", ["BM25, words and exact terms"])
    d.arrow(145, 72, 145, 102)
    d.arrow(415, 72, 415, 102)
    d.box(20, 104, 250, "in standard deviations", [f"× {semantic}"])
    d.box(290, 104, 250, "in standard deviations", [f"× {lexical}"])
    d.arrow(145, 152, 230, 190)
    d.arrow(415, 152, 330, 190)
    d.box(170, 192, 220, "Sum", ["score of the chunk"])
    d.arrow(280, 240, 280, 270)
    d.box(
        100,
        272,
        360,
        f"+ document × {documents} + its best chunk",
        ["file name, title, opening; the document's best hit"],
    )
    d.arrow(280, 320, 280, 350)
    d.box(
        100,
        352,
        360,
        "+ best sentence or table row of the chunk",
        [f"for the first {COMPARED} hits, by words and meaning"],
    )
    d.arrow(190, 400, 150, 436)
    d.arrow(370, 400, 410, 436)
    d.box(20, 438, 250, "Order of the results", ["with the share of each part"])
    d.box(290, 438, 250, "Confidence", ["do these documents answer?"])
    d.text(20, 512, f"The weights {semantic}, {lexical} and {documents} are settings.", "small")
    d.text(20, 532, 'With fusion="rrf": reciprocal ranks instead of scores.', "small")
    return d


def units() -> Drawing:
    """How a chunk is cut at ingest, and its units are compared at a search."""
    d = Drawing(
        446,
        "At ingest, a chunk is cut into sentences, rows and headings, which are stored as arrays. A search compares the"
        " arrays of the first hits with the question, to mark, to rank and to measure the confidence.",
    )
    d.text(20, 30, "Ingest", "lane")
    d.box(20, 44, 150, "Chunk", ["header, context, text"])
    d.arrow(170, 68, 208, 68)
    for number, (name, kind) in enumerate(
        [("header and context", "bar"), ("heading", "bar"), ("table row", "mark"), ("sentence", "bar")]
    ):
        d.rect(210, 44 + 24 * number, 150, 20, kind, 4)
        d.text(285, 59 + 24 * number, name, "small", "middle")
    d.arrow(360, 68, 398, 68)
    d.box(400, 44, 140, "units.bin", ["offsets, terms,", "directions"], "store")
    d.text(20, 190, "Search", "lane")
    d.box(20, 204, 150, "Question", ["words and vector"])
    d.box(210, 204, 150, "First hits", [f"{COMPARED} of the ranking"])
    d.arrow(285, 252, 285, 290)
    d.arrow(170, 228, 208, 228)
    d.parts.append('<path d="M470 110V316H442" class="line" marker-end="url(#head)"/>')
    d.box(130, 292, 310, "Units compared", ["words that occur, similarity in meaning"], "store")
    for x, title, line in (
        (20, "Mark", "best sentence"),
        (210, "Order", "its score is added"),
        (400, "Confidence", ""),
    ):
        d.arrow(285, 340, x + (150 if x < 400 else 140) / 2, 374)
        d.box(x, 376, 150 if x < 400 else 140, title, [line or "words together"])
    return d


def main() -> None:
    """Write all diagrams."""
    for draw in (way, segments, cache, versions, fusion, units):
        (ASSETS / f"{draw.__name__}.svg").write_text(draw().svg(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
