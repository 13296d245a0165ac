"""Find the figures of a PDF and their captions, from the positions of its lines and of what is drawn.

Neighbouring pictures and shapes form groups. A caption gets the nearest group above or below it without running text
between them, and the groups next to it. Other groups are figures if they are large enough and neither a table, a frame
around text, a background, nor repeated on several pages.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from llama_index_contextual.figures import FigureKind, label_at_start
from llama_index_contextual.readers.figures import is_table_caption
from llama_index_contextual.readers.lines import NO_SPACE, Line

if TYPE_CHECKING:  # imports PDFium, which only the process that parses PDFs needs
    from llama_index_contextual.readers.pdf.graphics import Graphic

MAX_ITEMS = 1_500
"""Maximum number of pictures and shapes on a page that are compared with one another."""
MAX_COMPARISONS = 50_000_000
"""Maximum number of comparisons of a document; pages that need more have no figures."""
NEAR = 7.0  # in points: maximum distance of items in a group
BACKGROUND = 0.8  # minimum share of the page that a background or a scan covers
REPEATED = 3  # number of pages on which a logo is repeated, or 2 if it stands at the same place
SNAP = 4.0  # in points: places that are closer together are equal
MIN_SIDE, MIN_SHARE = 40.0, 0.009  # of a figure without caption: shorter side in points, share of the page
MIN_DRAWN_SIDE, MIN_DRAWN_SHARE, MIN_SHAPES = 60.0, 0.02, 4  # of a drawing without caption
MIN_CURVE, MIN_LINES, MAX_TEXTS = 0.25, 8, 4  # of a plot: share of its largest curve, lines, and texts in it
MIN_CAPTIONED_SIDE, MIN_CAPTIONED_SHARE = 18.0, 0.002
MIN_STRIP = 8.0  # in points: minimum height of a picture with caption
MIN_PICTURE_PART = 0.3  # minimum share of a group that pictures cover for it to be a picture
MIN_PANEL, MAX_PANEL_LINES = 0.05, 4  # share of the page from which a shape with more lines of text is their frame
EDGE = 0.08  # share of the page's height at which headers and footers end
MAX_CAPTION_GAP = 110.0  # in points: maximum distance between a figure and its caption, with only labels between them
MIN_OVERLAP = 0.05  # of the width of a caption and that of its figure, as a share of the smaller one
MAX_BESIDE = 100.0  # in points: maximum distance between a figure and its caption next to it
MAX_PART_GAP = 60.0  # in points: maximum distance between the parts of a figure
MAX_PANEL_GAP = 120.0  # in points: maximum distance between parts of equal size
AGAINST_CUSTOM = 60.0  # points by which a figure on the other side than those of most captions seems farther away
WEAK = 40.0  # points by which a group of rules and boxes seems farther away
MAX_STEP = 1.8  # times the font size: maximum distance between the lines of a paragraph
MAX_CAPTION_LINES = 15
LABEL_REACH = 14.0  # in points: distance at which labels belong to a drawing
LABEL_SIZE = 1.08  # times the font size of the text: maximum size of a label next to a drawing
MAX_SHIFT = 60.0  # in points: how far a label may reach beyond its drawing
MAX_LABEL = 45  # maximum length of a label in characters
MIN_PROSE = 45  # minimum length of a line of running text in characters
MIN_FONT, LETTER = 1.5, 0.48  # minimum font size in points; mean width of a letter as a share of the font size
MARGIN = 3.0  # in points, around a figure

_AFTER_LABEL = re.compile(r"\s?[:.：．。|–—―-]|\s*\Z")
_PART_LABEL = re.compile(r"\([a-h]\)\s")  # of the parts of a figure
_SENTENCE_END = (".", "!", "?", "。", ":", ")")


class Box(NamedTuple):
    """A rectangle in points, with y growing upwards."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def area(self) -> float:
        """Area in square points."""
        return max(0.0, self.x1 - self.x0) * max(0.0, self.y1 - self.y0)

    @property
    def side(self) -> float:
        """Length of the shorter side."""
        return min(self.x1 - self.x0, self.y1 - self.y0)

    def union(self, other: Box) -> Box:
        """Return the smallest box that contains both boxes."""
        return Box(min(self.x0, other.x0), min(self.y0, other.y0), max(self.x1, other.x1), max(self.y1, other.y1))

    def grown(self, by: float) -> Box:
        """Return the box with each edge moved outwards."""
        return Box(self.x0 - by, self.y0 - by, self.x1 + by, self.y1 + by)

    def within(self, other: Box) -> Box:
        """Return the part of the box that is in another one."""
        return Box(max(self.x0, other.x0), max(self.y0, other.y0), min(self.x1, other.x1), min(self.y1, other.y1))

    def meets(self, other: Box) -> bool:
        """Return whether the boxes touch or overlap."""
        return self.x0 <= other.x1 and other.x0 <= self.x1 and self.y0 <= other.y1 and other.y0 <= self.y1

    def is_panel_beside(self, other: Box) -> bool:
        """Return whether the boxes are large, have the same size, and stand in one row or column."""
        edges = [abs(mine - its) for mine, its in zip(self, other, strict=True)]
        in_row, in_column = max(edges[1], edges[3]) <= SNAP, max(edges[0], edges[2]) <= SNAP
        wide = abs(self.x1 - self.x0 - other.x1 + other.x0)
        high = abs(self.y1 - self.y0 - other.y1 + other.y0)
        return self.side >= MIN_DRAWN_SIDE and ((in_row and wide <= SNAP) or (in_column and high <= SNAP))

    def has_middle_of(self, other: Box) -> bool:
        """Return whether the middle of another box is in this box."""
        x, y = (other.x0 + other.x1) / 2, (other.y0 + other.y1) / 2
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1


class DrawnPage(NamedTuple):
    """A page with its lines and what is drawn on it.

    Attributes:
        number: Index of the page, starting at 0.
        lines: The lines, with their offsets in the document.
        graphics: Pictures and shapes.
        box: The edges of the page, in the direction of its text.
        start: Offset of the page in the document.
    """

    number: int
    lines: Sequence[Line]
    graphics: Sequence[Graphic]
    box: Box
    start: int


class Region(NamedTuple):
    """A figure on a page.

    Attributes:
        page: Index of the page.
        box: Its edges, in the direction of the page's text.
        kind: Kind of the figure.
        start: Offset of the caption or, without a caption, of the place of the figure.
        end: Offset after the caption.
    """

    page: int
    box: Box
    kind: FigureKind
    start: int
    end: int


@dataclass(frozen=True)
class _Text:
    """A line, or one of several pieces of a line."""

    line: Line
    box: Box
    flows_in: bool  # whether the previous line continues on this line

    @property
    def is_prose(self) -> bool:
        text = self.line.text
        if _PART_LABEL.match(text):
            return False
        is_wide = len(NO_SPACE.findall(text)) > MIN_PROSE / 3
        return self.line.upright and (is_wide or (len(text) >= MIN_PROSE and text.count(" ") >= 5))


@dataclass(frozen=True)
class _Caption:
    """A caption: its lines as one box, and its span in the document."""

    box: Box
    start: int
    end: int
    names_table: bool


@dataclass(eq=False)
class _Group:
    """Neighbouring pictures and shapes."""

    box: Box
    pictures: int = 0
    shapes: int = 0
    others: int = 0
    picture_area: float = 0.0
    curve_area: float = 0.0  # of the largest shape
    items: list[Graphic] = field(default_factory=list)

    def add(self, other: _Group) -> None:
        """Add the items of another group."""
        self.box = self.box.union(other.box)
        self.pictures += other.pictures
        self.shapes += other.shapes
        self.others += other.others
        self.picture_area += other.picture_area
        self.curve_area = max(self.curve_area, other.curve_area)
        self.items += other.items

    @property
    def is_picture(self) -> bool:
        return self.picture_area >= MIN_PICTURE_PART * self.box.area

    @property
    def is_weak(self) -> bool:
        """Whether it consists of rules and boxes only, as tables do."""
        return not self.pictures and self.shapes < 2


def find_figures(pages: Sequence[DrawnPage]) -> list[Region]:
    """Return the figures of a document, in the order of the pages and of their places in the text."""
    repeated = _repeated(pages)
    drawn: list[_Page] = []
    comparisons = 0
    for page in pages:
        graphics = [graphic for graphic in page.graphics if graphic.key not in repeated]
        comparisons += min(len(graphics), MAX_ITEMS) ** 2 + len(graphics)
        if graphics and comparisons <= MAX_COMPARISONS:
            with_groups = _Page(page, graphics)
            if comparisons + with_groups.comparisons <= MAX_COMPARISONS:
                comparisons += with_groups.comparisons
                drawn.append(with_groups)
    custom = sum(each.votes for each in drawn)
    drawings = Counter(_identity(group) for each in drawn for group in each.groups)
    regions: list[Region] = []
    for each in drawn:
        regions += each.regions(
            custom, {drawing for drawing, count in drawings.items() if drawing and count >= REPEATED}
        )
    return sorted(regions, key=lambda region: (region.page, region.start, -region.box.y1, region.box.x0))


def _repeated(pages: Sequence[DrawnPage]) -> set[str]:
    """Return the keys of pictures that are on several pages, such as logos."""
    on_pages: dict[str, set[int]] = defaultdict(set)
    at_places: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    for page in pages:
        for graphic in page.graphics:
            if graphic.key:
                on_pages[graphic.key].add(page.number)
                at_places[graphic.key, _place(Box(*graphic[:4]))].add(page.number)
    often = {key for key, found in on_pages.items() if len(found) >= REPEATED}
    return often | {key for (key, _), found in at_places.items() if len(found) >= REPEATED - 1}


def _identity(group: _Group) -> tuple[int, ...]:
    """Return numbers that are equal for a drawing that is repeated at the same place; empty for a picture."""
    return () if group.pictures else (*_place(group.box), group.shapes, group.others)


def _place(box: Box) -> tuple[int, ...]:
    return tuple(round(edge / SNAP) for edge in box)


class _Page:
    """A page on which something is drawn."""

    def __init__(self, page: DrawnPage, graphics: Sequence[Graphic]) -> None:
        self._page = page
        self._area = page.box.area or 1.0
        self._lines = list(_with_sizes(page.lines))
        self._texts = list(_texts(self._lines))
        self._captions = list(_captions(self._texts))
        self._prose = [text.box for text in self._texts if text.is_prose]
        self._slanting = [Box(*graphic[:4]) for graphic in graphics if graphic.kind == "text"]
        self.groups = self._groups(graphics)
        self._tables = [caption for caption in self._captions if caption.names_table]
        self._figures = [caption for caption in self._captions if not caption.names_table]
        # Captions are compared with groups, and those that are near one another with the texts between them.
        self.comparisons = len(self._captions) * len(self.groups) * (4 + len(self._texts)) // 4

    def _groups(self, graphics: Sequence[Graphic]) -> list[_Group]:
        items: dict[tuple[object, ...], Graphic] = {}
        for graphic in graphics:
            box = Box(*graphic[:4])
            if graphic.kind != "text" and box.area < BACKGROUND * self._area and not self._is_underline(graphic, box):
                items.setdefault((graphic.kind, *_place(box)), graphic)
        groups = _grouped([item for item in list(items.values())[:MAX_ITEMS] if not self._is_panel(item)])
        return self._with_insets([part for group in groups for part in _without_table(group)])

    def _with_insets(self, groups: list[_Group]) -> list[_Group]:
        """Return the groups, with those in another one, such as the key of a drawing, as parts of it."""
        out: list[_Group] = []
        for group in sorted(groups, key=lambda group: -group.box.area):
            around = next((each for each in out if self._has_inset(each, group)), None)
            if around is None:
                out.append(group)
            else:
                around.add(group)
        return out

    def _has_inset(self, group: _Group, inset: _Group) -> bool:
        return (
            group.shapes >= MIN_SHAPES
            and group.box.has_middle_of(inset.box)
            and not self._encloses_more(group.box.union(inset.box), inset.box)
        )

    def _is_panel(self, graphic: Graphic) -> bool:
        """Return whether a shape is the background of running text, or a frame around it."""
        box = Box(*graphic[:4])
        if graphic.kind == "picture" or box.area < MIN_PANEL * self._area:
            return False
        return sum(box.has_middle_of(prose) for prose in self._prose) > MAX_PANEL_LINES

    def _is_underline(self, graphic: Graphic, box: Box) -> bool:
        """Return whether a horizontal line crosses most of the page, as below a heading or above footnotes."""
        return (
            graphic.kind == "rule"
            and box.y1 - box.y0 < box.x1 - box.x0
            and box.x1 - box.x0 >= 0.6 * (self._page.box.x1 - self._page.box.x0)
        )

    # ---- captions ----------------------------------------------------------------------------------------------------

    @property
    def votes(self) -> int:
        """Number of captions with a figure only above them, minus the number of those with one only below them."""
        votes = 0
        for caption in self._figures:
            sides = {side for group in self.groups for side in [self._side(caption, group)] if side}
            votes += ("above" in sides and "below" not in sides) - ("below" in sides and "above" not in sides)
        return votes

    def _side(self, caption: _Caption, group: _Group) -> str:
        cost, side = self._distance(caption, group)
        return side if cost is not None else ""

    def _distance(self, caption: _Caption, group: _Group) -> tuple[float | None, str]:
        """Return the distance of a group from a caption and where it is, or None if it cannot belong to it."""
        box, other = caption.box, group.box
        if box.grown(-1).meets(other.grown(-1)) and self._is_frame(caption, other):
            return None, ""
        if (
            other.side < (MIN_STRIP if group.is_picture else MIN_CAPTIONED_SIDE)
            or other.area < MIN_CAPTIONED_SHARE * self._area
        ):
            return None, ""
        overlap = min(box.x1, other.x1) - max(box.x0, other.x0)
        beside = min(box.y1, other.y1) - max(box.y0, other.y0)
        height, middle = min(box.y1 - box.y0, other.y1 - other.y0), (other.y0 + other.y1) / 2
        if overlap >= MIN_OVERLAP * min(box.x1 - box.x0, other.x1 - other.x0):
            is_above = middle > (box.y0 + box.y1) / 2
            gap = other.y0 - box.y1 if is_above else box.y0 - other.y1
            side = "above" if is_above else "below"
        elif beside >= 0.6 * height:
            gap, side = max(other.x0 - box.x1, box.x0 - other.x1), "beside"
            if gap > MAX_BESIDE:
                return None, ""
        else:
            return None, ""
        if gap > MAX_CAPTION_GAP or gap < -0.25 * (other.y1 - other.y0) or self._is_divided(box, other):
            return None, ""
        return max(gap, 0.0) + (20.0 if side == "beside" else 0.0) + (WEAK if group.is_weak else 0.0), side

    def _is_frame(self, caption: _Caption, box: Box) -> bool:
        """Return whether a box surrounds a caption together with running text."""
        return box.has_middle_of(caption.box) and sum(box.has_middle_of(prose) for prose in self._prose) > 3

    def _is_divided(self, caption: Box, other: Box) -> bool:
        """Return whether running text or another caption stands between a caption and a group."""
        low, high = sorted((caption.y1, other.y0) if other.y0 >= caption.y1 - 2 else (other.y1, caption.y0))
        left, right = max(caption.x0, other.x0), min(caption.x1, other.x1)
        between = Box(left, low + 1, right, high - 1)
        if between.y1 <= between.y0 or right <= left:
            return False
        blocks = [*self._prose, *(each.box for each in self._captions if each.box != caption)]
        return any(
            between.meets(each) and not other.has_middle_of(each) and each != caption
            for each in blocks
            if not caption.has_middle_of(each)
        )

    # ---- figures -----------------------------------------------------------------------------------------------------

    def regions(self, custom: int, repeated: set[tuple[int, ...]]) -> Iterator[Region]:
        """Yield the figures of the page.

        Args:
            custom: Positive if the captions of the document are below their figures, negative if they are above them.
            repeated: Drawings that are repeated on several pages, such as logos.
        """
        groups = self.groups
        left_out = [group for group in groups if self._is_table(group)]
        free = [group for group in groups if group not in left_out]
        pairs = []
        for number, caption in enumerate(self._figures):
            for at, group in enumerate(free):
                cost, side = self._distance(caption, group)
                if cost is not None:
                    is_unusual = (side == "below" and custom > 0) or (side == "above" and custom < 0)
                    pairs.append((cost + AGAINST_CUSTOM * is_unusual, number, at))
        taken: dict[int, int] = {}
        assigned: dict[int, int] = {}
        for _, number, at in sorted(pairs):
            if number not in assigned and at not in taken:
                assigned[number], taken[at] = at, number
        boxes = {number: free[at].box for number, at in assigned.items()}
        members = {number: [free[at]] for number, at in assigned.items()}
        self._add_parts(boxes, members, [group for at, group in enumerate(free) if at not in taken])
        used = [group for each in members.values() for group in each]
        for number, box in boxes.items():
            caption = self._figures[number]
            kind: FigureKind = "picture" if any(group.is_picture for group in members[number]) else "drawing"
            yield self._region(self._with_labels(box, caption.box), kind, caption.start, caption.end)
        for group in free:
            if (
                group not in used
                and self._is_figure(group)
                and _identity(group) not in repeated
                and not any(box.grown(2).has_middle_of(group.box) for box in boxes.values())
            ):
                kind = "picture" if group.is_picture else "drawing"
                box = self._with_labels(group.box, None, LABEL_REACH / 2) if kind == "drawing" else group.box
                start = self._place_of(group.box)
                yield self._region(box, kind, start, start)

    def _region(self, box: Box, kind: FigureKind, start: int, end: int) -> Region:
        return Region(self._page.number, box.grown(MARGIN).within(self._page.box), kind, start, end)

    def _is_table(self, group: _Group) -> bool:
        """Return whether the caption of a table stands next to a group without pictures."""
        if group.is_picture:
            return False
        box = group.box.grown(25)
        return any(
            box.meets(caption.box) and caption.box.x0 < group.box.x1 and group.box.x0 < caption.box.x1
            for caption in self._tables
        ) and not any(group.box.grown(12).meets(caption.box) for caption in self._figures)

    def _add_parts(self, boxes: dict[int, Box], members: dict[int, list[_Group]], others: list[_Group]) -> None:
        """Add to each figure the groups near it, as long as no running text and no caption is enclosed."""
        has_changed = True
        while has_changed and others:
            has_changed = False
            for group in list(others):
                for number, box in boxes.items():
                    if self._is_part(group.box, box, members[number], number, boxes):
                        boxes[number] = box.union(group.box)
                        members[number].append(group)
                        others.remove(group)
                        has_changed = True
                        break

    def _is_part(self, part: Box, box: Box, members: Sequence[_Group], number: int, boxes: dict[int, Box]) -> bool:
        is_panel = any(part.is_panel_beside(member.box) for member in members)
        if not box.grown(MAX_PANEL_GAP if is_panel else MAX_PART_GAP).meets(part):
            return False
        union = box.union(part)
        if self._encloses_more(union, box):
            return False
        return not any(union.meets(other) and not box.meets(other) for key, other in boxes.items() if key != number)

    def _is_figure(self, group: _Group) -> bool:
        """Return whether a group without caption is a figure."""
        box, page = group.box, self._page.box
        height = page.y1 - page.y0
        if box.y0 >= page.y1 - EDGE * height or box.y1 <= page.y0 + EDGE * height:
            return False
        prose = sum(box.has_middle_of(each) for each in self._prose)
        if group.is_picture:
            return box.side >= MIN_SIDE and box.area >= MIN_SHARE * self._area and prose <= 3
        is_large = box.side >= MIN_DRAWN_SIDE and box.area >= MIN_DRAWN_SHARE * self._area
        if not is_large or prose > 1 or box.area >= BACKGROUND * self._area:
            return False
        return group.shapes >= MIN_SHAPES or self._is_plot(group)

    def _is_plot(self, group: _Group) -> bool:
        """Return whether a group is a curve with its axes, and not a frame around cells with text."""
        texts = sum(group.box.has_middle_of(text.box) for text in self._texts)
        has_axes = group.shapes + group.others >= MIN_LINES
        return has_axes and group.curve_area >= MIN_CURVE * group.box.area and texts <= MAX_TEXTS

    def _with_labels(self, box: Box, caption: Box | None, reach: float = LABEL_REACH) -> Box:
        """Return the edges of a figure with the labels in it, and with those that are at most `reach` points away.

        A label next to a figure has the size of the text or a smaller one, unlike the heading above it.
        """
        usual = _usual_size(self._lines)
        labels = [(each, reach) for each in self._slanting]
        for text in self._texts:
            is_short = len(text.line.text) <= MAX_LABEL or text.line.cells > 1
            if is_short and text.line.upright and not text.is_prose and not self._is_in_caption(text.box):
                labels.append((text.box, reach if text.line.size <= LABEL_SIZE * usual else 0.0))
        for _ in range(2):  # a label may stand next to another one
            for label, distance in labels:
                is_near = box.grown(distance).meets(label)
                if is_near and box.x0 - MAX_SHIFT <= label.x0 and label.x1 <= box.x1 + MAX_SHIFT:
                    union = box.union(label)
                    box = box if self._encloses_more(union, box) else union
        if caption is not None and box.meets(caption):
            if caption.y1 <= (box.y0 + box.y1) / 2:
                box = box._replace(y0=max(box.y0, caption.y1))
            elif caption.y0 >= (box.y0 + box.y1) / 2:
                box = box._replace(y1=min(box.y1, caption.y0))
        return box

    def _is_in_caption(self, box: Box) -> bool:
        return any(caption.box.has_middle_of(box) for caption in self._captions)

    def _encloses_more(self, union: Box, box: Box) -> bool:
        """Return whether a box encloses running text or a caption that a part of it does not enclose."""
        texts = (*self._prose, *(caption.box for caption in self._captions))
        return any(union.has_middle_of(text) and not box.has_middle_of(text) for text in texts)

    def _place_of(self, box: Box) -> int:
        """Return the offset after the last line above a figure, or that of the page."""
        above = [
            text for text in self._texts if text.box.y0 >= box.y1 - 4 and text.box.x0 < box.x1 and box.x0 < text.box.x1
        ]
        line = min(above, key=lambda text: text.box.y0).line if above else None
        return self._page.start if line is None else line.start + len(line.text)


def _grouped(items: Sequence[Graphic]) -> list[_Group]:
    """Return the groups of items that are near one another."""
    parents = list(range(len(items)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    order = sorted(range(len(items)), key=lambda at: items[at].x0)
    active: list[tuple[float, int]] = []  # right edges
    for at in order:
        item = items[at]
        while active and active[0][0] < item.x0 - NEAR:
            active.pop(0)
        for _, other in active:
            near = items[other]
            if near.y0 <= item.y1 + NEAR and item.y0 <= near.y1 + NEAR:
                parents[root(at)] = root(other)
        insort(active, (item.x1, at))
    groups: dict[int, _Group] = {}
    for at, item in enumerate(items):
        box = Box(*item[:4])
        is_picture, is_shape = item.kind == "picture", item.kind == "shape"
        area = box.area
        alone = _Group(
            box,
            int(is_picture),
            int(is_shape),
            int(item.kind in ("box", "rule")),
            area if is_picture else 0.0,
            area if is_shape else 0.0,
            [item],
        )
        if (key := root(at)) in groups:
            groups[key].add(alone)
        else:
            groups[key] = alone
    return list(groups.values())


def _without_table(group: _Group) -> list[_Group]:
    """Return the pictures in the cells of a table apart from its lines, or the group itself."""
    if not group.pictures or group.is_picture or group.shapes:
        return [group]
    pictures = [item for item in group.items if item.kind == "picture"]
    return [*_grouped(pictures), *_grouped([item for item in group.items if item.kind != "picture"])]


def _usual_size(lines: Iterable[Line]) -> float:
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[round(line.size, 1)] += len(line.text)
    return max(sizes, key=sizes.__getitem__, default=10.0)


# ---- lines and captions ----------------------------------------------------------------------------------------------


def _with_sizes(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines, with the size estimated from their width where the font, such as one of bitmaps, states none."""
    without = [line for line in lines if line.size < MIN_FONT and line.text and line.x1 > line.x0]
    size = median((line.x1 - line.x0) / len(line.text) for line in without) / LETTER if without else 0.0
    for line in lines:
        yield replace(line, size=size, pieces=()) if line.size < MIN_FONT else line


def _texts(lines: Sequence[Line]) -> Iterator[_Text]:
    """Yield the lines whose position is known, with the pieces of a line apart."""
    before: Line | None = None
    for line in lines:
        if not math.isnan(line.y):
            # At a larger distance, the lines are parts of a paragraph only if the second one begins a column.
            flows = before is not None and before.end == " " and before.y - line.y <= MAX_STEP * line.size
            for piece in _pieces(line):
                box = Box(piece.x0, piece.y - 0.25 * piece.size, piece.x1, piece.y + 0.75 * piece.size)
                yield _Text(piece, box, flows)
        before = line


def _pieces(line: Line) -> Iterator[Line]:
    if len(line.pieces) < 2 or sum(length for *_, length in line.pieces) + len(line.pieces) - 1 != len(line.text):
        yield line
        return
    at = 0
    for x0, x1, length in line.pieces:
        text = line.text[at : at + length]
        yield replace(line, text=text, x0=x0, x1=x1, start=line.start + at, cells=line.cells)
        at += length + 1


def _captions(texts: Sequence[_Text]) -> Iterator[_Caption]:
    usual = _usual_size(text.line for text in texts)
    for at, text in enumerate(texts):
        names_table = is_table_caption(text.line.text)
        if (names_table and not text.flows_in) or _is_caption(text, usual):
            lines = [text, *_continuations(text, texts[at + 1 : at + MAX_CAPTION_LINES])]
            box = lines[0].box
            for other in lines[1:]:
                box = box.union(other.box)
            last = lines[-1].line
            yield _Caption(box, text.line.start, last.start + len(last.text), names_table)


def _is_caption(text: _Text, usual: float) -> bool:
    """Return whether a line begins a caption, and not a sentence such as "Figure 3 shows the pump"."""
    label = label_at_start(text.line.text)
    if not label or text.flows_in:
        return False
    rest = text.line.text[len(label) :]
    if _AFTER_LABEL.match(rest) or NO_SPACE.match(label[0]):
        return True
    word = rest.strip()[:1]
    is_set_apart = text.line.bold or abs(text.line.size - usual) > 0.04 * usual
    return word.isupper() or (is_set_apart and not word.islower())


def _continuations(first: _Text, following: Sequence[_Text]) -> Iterator[_Text]:
    """Yield the lines on which a caption continues."""
    last, width = first, first.box.x1 - first.box.x0
    has_only_label = not first.line.text[len(label_at_start(first.line.text)) :].strip(" .:")
    for text in following:
        line, before = text.line, last.line
        step = (before.y - line.y) / (before.size or 1.0)
        is_below = 0.7 < step <= MAX_STEP and abs(line.size - before.size) <= 0.1 * before.size
        is_aligned = min(text.box.x1, last.box.x1) - max(text.box.x0, last.box.x0) > 0 and line.x0 - first.line.x0 < 90
        if not is_below or not is_aligned or label_at_start(line.text) or is_table_caption(line.text):
            return
        is_full = last.box.x1 - last.box.x0 >= 0.8 * max(width, text.box.x1 - text.box.x0)
        is_open = not before.text.rstrip().endswith(_SENTENCE_END)
        if (
            not has_only_label
            and before.end != " "
            and not (is_full and (is_open or line.text[:1].islower()))
            and not (is_open and line.text[:1].islower())
        ):
            return
        yield text
        last, width = text, max(width, text.box.x1 - text.box.x0)
