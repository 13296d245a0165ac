"""The response of a search: results with their sources and scores, explanations, and text and HTML output."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import excerpt, pluralize
from llama_index_contextual.figures import FAR, Figure, figures_from_json, with_distances
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.rows import rows_at

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

HitT = TypeVar("HitT", bound="BaseHit")
ConfidenceLevel = Literal["high", "medium", "low", "none"]

INDEX_NAMES = ("semantic", "lexical", "document")
"""Names of the indexes in the evidence for a chunk."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal or change the text direction."""

_VERDICTS = {
    "high": "High confidence: the best passage matches the question closely, in words and in meaning.",
    "medium": "Medium confidence: the best passage matches a part of the question.",
    "low": "Low confidence: even the best passage has little in common with the question, in words and in meaning.",
    "none": "No passage was found.",
    "folded": "Nothing found: no passage is likely to answer this.",
}
"""Sentences for the confidence levels, used everywhere in the package."""

_WIDTH = 400
"""Number of characters after which a query is truncated for display."""

MAX_NEAR_FIGURES = 3
"""Maximum number of figures that are shown next to a passage."""

_MAX_WORDS, _MAX_WORD_LENGTH, _MAX_MISSING = 50, 60, 5
_START = attrgetter("start")


# Not frozen, because creating a frozen object takes several times as long, and a search creates many.
@dataclass(slots=True, unsafe_hash=True)
class IndexScore:
    """Score and rank of a chunk in one index.

    Attributes:
        score: Cosine similarity (-1 to 1) in the semantic index; BM25 score (above 0) in the other indexes.
        rank: Position of the chunk in the ranking of the index, starting at 1; in the document index, the position of
            its document.
        matched_terms: Terms of the query that occur in the chunk or its context, for the lexical index only.
    """

    score: float
    rank: int
    matched_terms: tuple[str, ...] = ()


# Not frozen, because creating a frozen object takes several times as long, and a search creates many.
@dataclass(kw_only=True, slots=True, unsafe_hash=True)
class Source:
    """The location of a passage in its document.

    Attributes:
        file_name: Name of the file.
        file_path: Path relative to the parent of the folder that was ingested.
        doc_id: Id of the document.
        page_start: Number of the physical page of the first character, starting at 1.
        page_end: Number of the physical page of the last character.
        page_label: Printed number of the first page.
        section: Path of the headings above the passage. If the passage lies in several sections, one label for them.
        title: Title of the document.
        segment_index: Number of the segment in the document, starting at 0.
        chunk_index: Number of the chunk in the document, starting at 0.
        start_char: Offset of the first character in the document's text.
        end_char: Offset after the last character.
    """

    file_name: str | None = None
    file_path: str | None = None
    doc_id: str | None = None
    page_start: int | None = None
    page_end: int | None = None
    page_label: str | None = None
    section: str | None = None
    title: str | None = None
    segment_index: int | None = None
    chunk_index: int | None = None
    start_char: int | None = None
    end_char: int | None = None

    @classmethod
    def of(cls, node: BaseNode) -> Source:
        """Return the source of a node from any parser; fields that are missing in the metadata are None."""
        start, end = getattr(node, "start_char_idx", None), getattr(node, "end_char_idx", None)
        return cls.from_place(node.metadata, node.ref_doc_id, start, end)

    @classmethod
    def from_place(cls, metadata: Mapping[str, Any], doc_id: str | None, start: int | None, end: int | None) -> Source:
        """Create a source from the metadata, the document id and the offsets of a chunk."""
        return cls(
            file_name=metadata.get(keys.FILE_NAME),
            file_path=metadata.get(keys.FILE_PATH),
            doc_id=doc_id,
            page_start=metadata.get(keys.PAGE_START),
            page_end=metadata.get(keys.PAGE_END),
            page_label=metadata.get(keys.PAGE_LABEL),
            section=keys.section_label(metadata),
            title=metadata.get(keys.TITLE),
            segment_index=metadata.get(keys.SEGMENT_INDEX),
            chunk_index=metadata.get(keys.CHUNK_INDEX),
            start_char=start,
            end_char=end,
        )

    def at(self, start: int, end: int, places: Sequence[keys.Place]) -> Source:
        """Return the source for a span within the document, with the span's own pages and section if they are known.

        Args:
            start: Offset of the first character of the span.
            end: Offset after the last character of the span.
            places: Pages and sections of the chunk or the document with their start offsets, in order.
        """
        return replace(self, start_char=start, end_char=end, **_values_at(places, start, end))

    def __str__(self) -> str:
        line = keys.source_line({k: v for k, v in asdict(self).items() if v is not None})
        return visible(line.removeprefix("Source: ") or self.doc_id or "unknown source")


class Mark(NamedTuple):
    """The sentence or table row of a passage that matches the question best.

    Attributes:
        start: Offset of the first character in the document's text, or in the passage if the passage has no offsets.
        end: Offset after the last character.
        text: Text of the sentence or row.
    """

    start: int
    end: int
    text: str

    @classmethod
    def of(cls, chunk: Chunk, start: int, end: int) -> Mark:
        """Return the mark for a span of a chunk's text."""
        base = chunk.start or 0
        return cls(base + start, base + end, chunk.text[start:end])


def _values_at(places: Sequence[keys.Place], start: int, end: int) -> dict[str, Any]:
    """Return the values of a span's own pages and section for a `Source`, as far as they are known."""
    first = bisect_right(places, start, key=_START) - 1
    if first < 0:
        return {}
    last = bisect_left(places, max(end, start + 1), lo=first, key=_START) - 1
    _, page, label, section = places[first]
    values: dict[str, Any] = {}
    if page is not None:
        values = {keys.PAGE_START: page, keys.PAGE_END: places[last].page, keys.PAGE_LABEL: label}
    if section or any(place.section for place in places):
        values[keys.SECTION] = section
    return values


class BaseHit:
    """Base class for results: a passage with its score and evidence."""

    if TYPE_CHECKING:
        rank: int
        relevance: float | None
        semantic: IndexScore | None
        lexical: IndexScore | None
        document: IndexScore | None
        spotlight: Mark | None
        newer: str | None

        @property
        def figures_folder(self) -> str | None:
            """Folder with the pictures of the figures, or None."""

        @property
        def node_id(self) -> str:
            """The id of the chunk."""

        def get_score(self, raise_error: bool = False) -> float:
            """Return the overall score of the passage."""

        @property
        def text(self) -> str:
            """The original text, without the context."""

        @property
        def metadata(self) -> dict[str, Any]:
            """The metadata of the chunk."""

        @property
        def source(self) -> Source:
            """The location of the passage in its document."""

    @property
    def figures(self) -> Sequence[Figure]:
        """The figures in the passage, and those to which it refers; those of the marked sentence come first.

        A figure has a caption, a page and, in most cases, a picture: `hit.figures[0].read_bytes()`.
        """
        return [figure for _, figure in self._figures()]

    def figures_at(self, places: Sequence[Source]) -> list[Figure]:
        """Return the figures to show next to some sentences of the passage, each of them once; see `near_figures`."""
        figures = figures_from_json(self.metadata.get(keys.FIGURES), self.figures_folder)
        base = self.source.start_char or 0
        near: dict[str, Figure] = {}
        for place in places if figures else ():
            start, end = place.start_char or 0, place.end_char or 0
            text = self.text[max(0, start - base) : max(0, end - base)]
            for distance, figure in with_distances(figures, text, start, end, place.page_start):
                if distance < FAR:
                    near.setdefault(figure.id, figure)
        return list(near.values())[:MAX_NEAR_FIGURES]

    def figure_lines(self) -> list[str]:
        """Return a line for each of `near_figures`, such as "Figure 3: The pump (page 4)"."""
        word = keys.page_word(self.source.file_name or "")
        return [visible(figure.line(word)) for figure in self.near_figures]

    @property
    def near_figures(self) -> Sequence[Figure]:
        """Up to three figures for the marked sentence: its own, those it refers to, or those on its page."""
        return [figure for distance, figure in self._figures() if distance < FAR][:MAX_NEAR_FIGURES]

    def _figures(self) -> list[tuple[int, Figure]]:
        figures = figures_from_json(self.metadata.get(keys.FIGURES), self.figures_folder)
        if self.spotlight is None:
            return [(0, figure) for figure in figures]
        mark, page = self.spotlight, self.place.page_start if figures else None
        return with_distances(figures, mark.text, mark.start, mark.end, page)

    @property
    def place(self) -> Source:
        """The location to show: that of the best-matching sentence or row, or that of the passage if there is none."""
        source, mark = self.source, self.spotlight
        return source if mark is None else source.at(mark.start, mark.end, keys.places_of(self.metadata))

    def spotlight_dict(self, *, texts: bool = True) -> dict[str, Any] | None:
        """Return the mark, with its pages and section, as a dict that can be written as JSON, or None.

        Args:
            texts: Whether to include the text.
        """
        mark, place = self.spotlight, self.place
        if mark is None:
            return None
        names = ("page_start", "page_end", "page_label", "section")
        text = {"text": mark.text} if texts else {}
        return {"start": mark.start, "end": mark.end, **text, **{name: getattr(place, name) for name in names}}

    @property
    def quote(self) -> str:
        """The sentence or table row that matches the question best, or the whole text if there is none."""
        return self.text if self.spotlight is None else self.spotlight.text

    @property
    def where(self) -> str:
        """The place of `quote` in one line: file, pages and section."""
        return str(self.place)

    @property
    def newer_note(self) -> str:
        """The newest document that supersedes the document of the passage, as "newer: leave-v2.docx", or ""."""
        return f"newer: {visible(self.newer.rpartition('/')[2])}" if self.newer else ""

    @property
    def context(self) -> str | None:
        """The sentences that situate the chunk in its document, or None."""
        return self.metadata.get(keys.CONTEXT) or None

    @property
    def written_context(self) -> str | None:
        """The part of the context that an LLM or a person wrote, without the structural line, or None."""
        return keys.context_parts(self.metadata)[1] or None

    @property
    def table_head(self) -> str | None:
        """The column headers of the table if the text begins inside a table, otherwise None."""
        return self.metadata.get(keys.TABLE_HEAD) or None

    @property
    def row(self) -> str:
        """The marked table row with the column header before each cell; "" if the mark is no row, or has no headers."""
        if self.spotlight is None:
            return ""
        start = self.spotlight.start - (self.source.start_char or 0)
        end, columns = start + len(self.spotlight.text), keys.columns_at(self.metadata, self.spotlight.start)
        rows = rows_at(self.text, start, end, table_head=self.table_head or "", columns=columns)
        return "" if rows is None else visible(rows.labelled())

    def __repr__(self) -> str:
        name, source = type(self).__name__, str(self.source)
        text = _shorten(self.text, 60)
        return f"{name}(rank={self.rank}, score={self.get_score():.4f}, source={source!r}, text={text!r})"

    def excerpt(self, query: str, width: int) -> str:
        """Return the text on one line, starting at the sentence or row that matches the question best.

        If there is no such sentence or row, or if it is longer than `width`, the text starts shortly before the matched
        terms or the words of the query.
        """
        if self.spotlight is not None and len(mark := visible(self.spotlight.text)) <= width:
            before, _, after = visible(self.text).partition(mark)
            return f"{'… ' if before else ''}{mark}{after}"
        terms = self.lexical.matched_terms if self.lexical else (word[0] for word in re.finditer(r"\w{4,64}", query))
        text = self.text if self.spotlight is None else self.spotlight.text
        return excerpt(visible(text), terms, width)


@dataclass(kw_only=True, repr=False)
class Hit(BaseHit):
    """A chunk among the search results.

    Attributes:
        chunk: The chunk.
        rank: Position among the results, starting at 1.
        score: Overall score, comparable only within one response.
        relevance: Estimated probability that the chunk is relevant, or None.
        semantic: Score and rank in the semantic index, or None if the chunk is not among its hits.
        lexical: Score and rank in the lexical index, or None if the chunk is not among its hits.
        document: Score and rank of the chunk's document, or None.
        spotlight: The sentence or table row that matches the question best, or None if nothing in the chunk matches.
        newer: Id of the newest document that supersedes the document of the chunk, or None.
    """

    chunk: Chunk
    rank: int
    score: float
    relevance: float | None = None
    semantic: IndexScore | None = None
    lexical: IndexScore | None = None
    document: IndexScore | None = None
    spotlight: Mark | None = None
    newer: str | None = None

    @property
    def node_id(self) -> str:
        """The id of the chunk."""
        return self.chunk.node_id

    @property
    def figures_folder(self) -> str | None:
        """Folder with the pictures of the figures, or None."""
        return self.chunk.figures_folder

    def get_score(self, raise_error: bool = False) -> float:
        """Return the overall score of the chunk."""
        return self.score

    @property
    def text(self) -> str:
        """The original text, without the context."""
        return self.chunk.text

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the chunk."""
        return self.chunk.metadata

    @property
    def source(self) -> Source:
        """The location of the passage in its document."""
        return Source.from_place(self.metadata, self.chunk.doc_id, self.chunk.start, self.chunk.end)


@dataclass(frozen=True)
class QueryBlend:
    """The texts that were searched for, if they differ from the question because of a conversation, dates or acronyms.

    Attributes:
        embedded: Texts with their weights in the query's embedding, the question first; empty if nothing was embedded.
        lexical: Texts with the weight of each of their terms, the question first.
        rewritten: The stand-alone question that was used instead of the original question, or None.
    """

    embedded: tuple[tuple[str, float], ...] = ()
    lexical: tuple[tuple[str, float], ...] = ()
    rewritten: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reranking:
    """A reranker's decision about a passage.

    Attributes:
        before: Rank before reranking, starting at 1.
        after: Rank after reranking; None if the passage was dropped.
        score: Probability from a cross-encoder, or 1 / rank in the order chosen by an LLM.
        threshold: Probability below which passages were dropped, or None.
        reason: The reason for the rank, in words.
    """

    before: int
    after: int | None
    score: float
    threshold: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        """Return the decision as one line of text.

        Example:
            >>> print(Reranking(before=7, after=2, score=0.9312, reason="probability 0.9312"))
            reranked from 7 to 2: probability 0.9312
        """
        if self.after is None:
            return f"dropped by the reranker from rank {self.before}: {self.reason}, below {self.threshold:g}"
        return f"reranked from {self.before} to {self.after}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class RerankerChoice:
    """The reranker selected by the settings of a project.

    Attributes:
        name: Name of the cross-encoder, "llm", or "spotlight" if only the best sentences are compared.
        reason: Reason why this reranker is used.
        device: Device on which the model runs, such as "cpu"; None if there is no model in this process yet.
    """

    name: str
    reason: str
    device: str | None = None

    @property
    def model(self) -> str:
        """The name and the device."""
        return self.name if self.device is None else f"{self.name} on {self.device}"

    def __str__(self) -> str:
        return f"{self.model} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class RerankerUse(RerankerChoice):
    """The reranker of a search.

    Attributes:
        passages: Number of passages that were sorted.
        windows: Number of texts that the model read, because long passages are divided; None for other rerankers.
        batch_size: Number of texts in a batch, or None.
        threshold: Probability below which passages were dropped, or None.
        seconds: Time that the model took; not part of comparisons.
    """

    passages: int = 0
    windows: int | None = None
    batch_size: int | None = None
    threshold: float | None = None
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        """Return the reranker as one line of text.

        Example:
            >>> use = RerankerUse(name="m", reason="named", device="cpu", passages=50, windows=61, batch_size=32)
            >>> print(use)
            Reranker: m on cpu (named); 50 passages, 61 windows in batches of 32, 0.00 s
        """
        if not self.passages:
            return f"Reranker: {super().__str__()}"
        read = pluralize(self.passages, "passage")
        if self.windows is not None:
            read += f", {pluralize(self.windows, 'window')} in batches of {self.batch_size}"
        return f"Reranker: {super().__str__()}; {read}, {self.seconds:.2f} s"


@dataclass(frozen=True)
class UnknownWord:
    """A word of a question that no document contains.

    Attributes:
        word: The word as it is written in the question.
        is_name: Whether it is written like a name, a code or an address, instead of like an ordinary word.
    """

    word: str
    is_name: bool

    def __str__(self) -> str:
        return self.word


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The reasons for the rank of a passage.

    Attributes:
        rank: Position in the ranking, starting at 1.
        node_id: Id of the chunk.
        source: Location of the passage in its document.
        score: Score of the ranking, or of the reranker.
        arithmetic: Calculation of the score before reranking, as text.
        shares: Components of the score before reranking, by name, as in `arithmetic`.
        semantic: Score and rank in the semantic index, or None if the chunk is not among its hits.
        lexical: Score and rank in the lexical index, or None if the chunk is not among its hits.
        document: Score and rank of the chunk's document, or None.
        in_text: Terms of the query in the text.
        in_context: Terms of the query that occur only in the context.
        in_structure: Terms of the query that occur only in the structural line, if the context also has a written part.
        missing: Terms of the query that do not occur in the passage.
        variants: Those of the terms in the passage that were searched as a variant of a term of the query, with the
            reason, such as {"kundigungsfrist": "compound of frist"}.
        why_not: The reasons why a near miss ranks below the last result.
        reranking: The reranker's decision, or None if there is no reranker.
    """

    rank: int
    node_id: str
    source: Source
    score: float
    arithmetic: str
    semantic: IndexScore | None = None
    lexical: IndexScore | None = None
    document: IndexScore | None = None
    in_text: tuple[str, ...] = ()
    in_context: tuple[str, ...] = ()
    in_structure: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    why_not: str | None = None
    reranking: Reranking | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lists = (("semantic", self.semantic), ("lexical", self.lexical), ("document", self.document))
        ranks = ", ".join(
            f"{name} rank {ranked.rank} ({ranked.score:.4f})" for name, ranked in lists if ranked is not None
        )
        terms = (
            ("in the text", self.in_text),
            ("only in the context", self.in_context),
            ("only in its structural part", self.in_structure),
            ("variants", [f"{term} ({reason})" for term, reason in self.variants.items()]),
            ("missing", self.missing),
        )
        lines = [
            f"{self.rank}. {self.source}: {self.score:.4f}",
            f"   {ranks}",
            f"   {self.arithmetic}",
            *([f"   {self.reranking}"] if self.reranking else []),
            *(f"   {where}: {_display_words(words)}" for where, words in terms if words),
            *([f"   why not: {self.why_not}"] if self.why_not else []),
        ]
        return "\n".join(_CONTROLS.sub(" ", line) for line in lines)


@dataclass(frozen=True)
class Standing:
    """The place of an expected document in the ranking of a question.

    Attributes:
        question: The question.
        explanation: Explanation of the rank of its best passage, with what it lacks to be a result; None if it is not
            ranked.
        ranked: Number of passages that were ranked.
        k: Number of results.
        unknown_words: Words of the question that no document contains.
    """

    question: str
    explanation: Explanation | None
    ranked: int
    k: int
    unknown_words: Sequence[UnknownWord] = ()

    @property
    def rank(self) -> int | None:
        """Rank of the best passage, starting at 1, or None if it is not ranked."""
        return None if self.explanation is None else self.explanation.rank

    def __str__(self) -> str:
        if self.explanation is None:
            head = f"Not among the {self.ranked:,} passages that are nearest to the question in words or in meaning."
        else:
            place = "among" if self.explanation.rank <= self.k else "not among"
            head = f"Rank {self.explanation.rank:,} of {self.ranked:,}, {place} the first {self.k}."
        head = " ".join(filter(None, (head, _missing_sentence(self.unknown_words))))
        return head if self.explanation is None else f"{head}\n{self.explanation}"


@dataclass(frozen=True, kw_only=True)
class SearchResponse:
    """The results of a search.

    Attributes:
        query: The question.
        mode_requested: The mode that was requested.
        mode_used: The mode that was used; it depends on the indexes of the version.
        warnings: Messages about differences between the request and the search.
        results: The results, best first.
        confidence: Estimated probability that the documents answer the question; None for retrievers that do not belong
            to a project.
        confidence_level: The confidence as a word. On eight question sets, at most 5 % of the answerable questions were
            rated "low", and at most 3 % of the questions on other subjects were rated "high". The level "none" means
            that there are no results. None if only words were searched, because no limits are reliable in that case.
        version: Name of the version that was searched.
        blend: The texts that were searched for, or None if this was only the question.
        intent: The intent of the question, if the search depends on it; for some intents, nothing is searched.
        reranker: The model that reranked the hits, and its time; for `rerank="auto"`, also the reason why there was no
            model. None for other searches without a model.
        explanations: Reasons for the rank of each result, if requested.
        near_misses: Explanations of the next hits, including the reasons why they rank below the last result, if
            requested.
        folded: The hits after the last one that is relevant enough, if the search has a `min_relevance`.
        unknown_words: Words of the question that no document contains. They are not listed if no words were searched,
            or if the question is in another language than the documents.
        languages: Languages in which the texts are analysed, the most frequent one first; empty without an index of
            words.
        foreign: Languages of the question and of most documents, if the search cannot relate them; otherwise None.
    """

    query: str
    mode_requested: str
    mode_used: str
    results: Sequence[BaseHit]
    warnings: Sequence[str] = ()
    confidence: float | None = None
    confidence_level: ConfidenceLevel | None = None
    version: str | None = None
    blend: QueryBlend | None = None
    intent: str | None = None
    reranker: RerankerUse | None = None
    explanations: Sequence[Explanation] = ()
    near_misses: Sequence[Explanation] = ()
    folded: Sequence[BaseHit] = ()
    unknown_words: Sequence[UnknownWord] = ()
    languages: Sequence[str] = ()
    foreign: tuple[str, str] | None = None

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[BaseHit]:
        return iter(self.results)

    def __getitem__(self, index: int) -> BaseHit:
        return self.results[index]

    @property
    def searched(self) -> str:
        """The question that was used: rewritten to stand alone, with explicit dates added, or unchanged."""
        return self.blend.rewritten if self.blend is not None and self.blend.rewritten else self.query

    def doubt(self, min_confidence: float | None = None) -> str:
        """Return a warning if the best passage has little in common with the question, otherwise an empty string.

        The warning is returned if there are results and the confidence level is "low". The command line, the answer
        prompts, Agno and MCP all use this rule. The warning does not mean that the answer is missing.

        Args:
            min_confidence: Confidence below which the warning is returned; None uses the "low" level.

        Example:
            >>> from dataclasses import replace
            >>> from llama_index.core.schema import NodeWithScore, TextNode
            >>> from llama_index_contextual import RetrievalResponse
            >>> response = RetrievalResponse.of_nodes("Why?", [NodeWithScore(node=TextNode(text="Zebras."), score=1.0)])
            >>> replace(response, confidence=0.07, confidence_level="low").doubt()
            'Low confidence: even the best passage has little in common with the question, in words and in meaning.'
        """
        if not self.results or self.confidence is None:
            return ""
        is_low = self.confidence_level == "low" if min_confidence is None else self.confidence < min_confidence
        return " ".join(filter(None, (_VERDICTS["low"], self.missing))) if is_low else ""

    @property
    def missing(self) -> str:
        """Words of the question that no document contains, as a sentence, or an empty string.

        Ordinary words are included only if nothing was found or the confidence level is "low", because the passages may
        express them in other words.
        """
        is_sure = bool(self.results) and self.confidence_level != "low"
        return _missing_sentence([word for word in self.unknown_words if word.is_name or not is_sure])

    def verdict(self) -> str:
        """Return the confidence level as a sentence, or an empty string if there is no level.

        The sentence is followed by the words of the question that no document contains; see `missing`.

        Example:
            >>> SearchResponse(query="Why?", mode_requested="hybrid", mode_used="hybrid", results=[]).verdict()
            'No passage was found.'
        """
        empty = "folded" if self.folded else "none"
        level = _VERDICTS.get(self.confidence_level or "", "") if self.results else _VERDICTS[empty]
        return " ".join(filter(None, (level, self.missing)))

    def to_dict(self, *, texts: bool = True) -> dict[str, Any]:
        """Return the response as a dict that can be written as JSON.

        Args:
            texts: Whether to include the texts and contexts of the passages.
        """
        names = ("query", "searched", "mode_requested", "mode_used", "version", "confidence", "confidence_level")
        out = {name: getattr(self, name) for name in names}
        if self.intent is not None:
            out["intent"] = self.intent
        if self.blend is not None:
            out["blend"] = asdict(self.blend)
        if self.reranker is not None:
            out["reranker"] = asdict(self.reranker)
        if self.explanations:
            out["explanations"] = [asdict(one) for one in self.explanations]
            out["near_misses"] = [asdict(one) for one in self.near_misses]
        if self.unknown_words:
            out["unknown_words"] = [str(word) for word in self.unknown_words]
        if self.folded:
            out["folded"] = [_result_dict(chunk, texts=texts) for chunk in self.folded]
        return {
            **out,
            "warnings": list(self.warnings),
            "results": [_result_dict(chunk, texts=texts) for chunk in self.results],
        }

    def __repr__(self) -> str:
        confidence = "" if self.confidence is None else f", confidence {self.confidence:.2f}"
        if self.confidence_level is not None:
            confidence += f", {self.confidence_level}"
        query = self.query if len(self.query) <= _WIDTH else f"{self.query[:_WIDTH]}…"
        head = f"{pluralize(len(self.results), 'result')} for {query!r} ({self.mode_used}{confidence})"
        lines = [
            f"{chunk.rank:>3}. {chunk.place}{f' ({note})' if (note := chunk.newer_note) else ''} "
            f" {_shorten(chunk.excerpt(self.query, 90))}"
            for chunk in self.results
        ]
        reasons = [visible(str(self.reranker))] if self.explanations and self.reranker is not None else []
        reasons += [str(one) for one in self.explanations]
        if self.near_misses:
            reasons += ["Near misses", *(str(one) for one in self.near_misses)]
        return "\n".join([head, *(f"  ! {visible(warning)}" for warning in self.warnings), *lines, *reasons])

    def _repr_html_(self) -> str:
        texts = [_shorten(chunk.excerpt(self.query, 300), 300) for chunk in self.results]
        contexts = [_shorten(chunk.written_context or chunk.context or "", 200) for chunk in self.results]
        cell = '<td style="text-align: left; vertical-align: top">'  # by default, Jupyter aligns cells to the right
        rows = "".join(
            f"<tr>{cell}{chunk.rank}</td>{cell}{escape(str(chunk.place))}</td>{cell}{chunk.get_score():.4f}</td>"
            f"{cell}<i>{escape(context)}</i><br>{escape(text)}</td></tr>"
            for chunk, context, text in zip(self.results, contexts, texts, strict=True)
        )
        columns = ("#", "source", "score", "context, text")
        heads = "".join(f'<th style="text-align: left">{column}</th>' for column in columns)
        warnings = "".join(f"<p>{escape(visible(warning))}</p>" for warning in self.warnings)
        return (
            f"<p><b>{escape(_shorten(self.query[: 2 * _WIDTH], _WIDTH))}</b> ({escape(self.mode_used)})</p>{warnings}"
            f"<table><tr>{heads}</tr>{rows}</table>"
        )


def without_repetitions(hits: Sequence[HitT]) -> list[HitT]:
    """Return the hits, except those whose marked sentence is that of an earlier one.

    Chunks of a document overlap, so the best sentence of two of them may be the same.
    """
    marks: set[tuple[str, int, int]] = set()
    distinct = []
    for hit in hits:
        place = hit.source
        if hit.spotlight is not None and place.doc_id is not None and place.start_char is not None:
            mark = (place.doc_id, hit.spotlight.start, hit.spotlight.end)
            if mark in marks:
                continue
            marks.add(mark)
        distinct.append(hit)
    return distinct


def _missing_sentence(words: Sequence[UnknownWord]) -> str:
    """Return a sentence with up to five words that no document contains, or an empty string."""
    if not words:
        return ""
    *others, last = (f"“{_shorten(word.word, _MAX_WORD_LENGTH)}”" for word in words[:_MAX_MISSING])
    return f"No document mentions {' or '.join(filter(None, (', '.join(others), last)))}."


def _result_dict(chunk: BaseHit, *, texts: bool) -> dict[str, Any]:
    """Return a result as a dict that can be written as JSON, without the node's metadata."""
    names = ("rank", "node_id", *(("text", "context") if texts else ()), "score", "relevance")
    out = {name: getattr(chunk, name) for name in names}
    for name in INDEX_NAMES:
        score: IndexScore | None = getattr(chunk, name)
        out[name] = None if score is None else {"score": score.score, "rank": score.rank}
    if chunk.lexical is not None:
        out["lexical"]["matched_terms"] = list(chunk.lexical.matched_terms)
    out["source"] = asdict(chunk.source)
    out["spotlight"] = chunk.spotlight_dict(texts=texts)
    if chunk.newer is not None:
        out["newer"] = chunk.newer
    if figures := chunk.near_figures:
        out["figures"] = [figure.to_dict() for figure in figures]
    return out


def mark_superseded(response: SearchResponse, superseded: Mapping[str, str]) -> SearchResponse:
    """Set `newer` of the hits from superseded documents, and return the response.

    Args:
        response: The response.
        superseded: The ids of these documents, each with the id of the newest one.
    """
    if superseded:
        for hit in cast("Sequence[Hit]", (*response.results, *response.folded)):
            hit.newer = superseded.get(hit.chunk.doc_id or "")
    return response


def visible(text: str) -> str:
    """Return a string as one line, without characters that control a terminal or change the text direction."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def _display_words(words: Sequence[str]) -> str:
    """Join up to 50 words with commas after cutting each to 60 characters, and append the number of omitted words."""
    shown = [_shorten(word, _MAX_WORD_LENGTH) for word in words[:_MAX_WORDS]]
    more = [f"and {len(words) - len(shown):,} more"] if len(words) > len(shown) else []
    return ", ".join([*shown, *more])


def _shorten(text: str, width: int = 90) -> str:
    """Return a string as one line, cut to at most `width` characters, between words if possible."""
    line = visible(text)
    if len(line) <= width:
        return line
    space = line.rfind(" ", 2 * width // 3, width)
    return f"{line[: space if space > 0 else width - 1]}…"
