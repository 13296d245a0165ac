"""The PDF behind the golden file: every feature of a document on a few pages."""

from __future__ import annotations

from tests.support.pdf_files import RawPdf, lines, show

_FONT = (
    b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding<</BaseEncoding/WinAnsiEncoding/Differences[1/fi/fl]>>>>"
)
_LEFT = (
    "The tenant keeps the premises in good",
    "repair and reports every defect within",
    "one week. The landlord sees to the roof",
    "and to the outer walls of the building",
    "and pays for the insurance of both, the",
    "tenant for that of his own belongings.",
)
_RIGHT = (
    "Either party may end this agreement by",
    "written notice of three months to the",
    "end of a quarter. The right to end this",
    "contract without notice for an important",
    "reason is left untouched by this clause,",
    "which no other paper may alter or lift.",
)
_TABLE = (("Base rent", "12,000", "12,600"), ("Service charge", "1,800", "1,950"), ("Deposit", "3,000", "-"))


def sample() -> bytes:
    """Return a lease of four pages: bookmarks, labels, header, footer, hyphens, ligatures, columns, a table, a scan."""
    pdf = RawPdf()
    pdf.objects[2] = _FONT
    image = pdf.stream(
        b"\x00", b"/Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8"
    )
    bodies = [
        show(50, 720, "Lease Agreement", size=16)
        + lines(["1 Parties", "The con\x01dential terms of this agree-", "ment bind both parties."], top=690),
        show(50, 720, "2 Duties") + _columns() + show(50, 600, "3 Rent") + _table(580),
        lines(["4 Closing", "Signed in \x02awless order on", "the 30"], top=720)
        + show(78, 696, "th", size=6)
        + show(88, 692, "of June."),
    ]
    for at, body in enumerate(bodies, 1):
        pdf.page(show(50, 775, "Orlen Valve Works - Lease") + body + show(280, 30, f"Page {at} of 4"))
    pdf.page(b"q 600 0 0 800 0 0 cm /Im Do Q", resources=b"/XObject<</Im %d 0 R>>" % image)
    marks = [("1 Parties", 0, 700), ("2 Duties", 1, 730), ("3 Rent", 1, 610), ("4 Closing", 2, 730)]
    pdf.catalog = b"/PageLabels<</Nums[0<</S/r>>1<</S/D>>]>>" + _outline(pdf, marks)
    pdf.trailer = b"/Info %d 0 R" % pdf.add(b"<</Title(Lease of the Orlen Valve Works)>>")
    return pdf.data()


def _columns() -> bytes:
    return lines(_LEFT, top=700, step=12) + lines(_RIGHT, top=700, x=320, step=12)


def _table(top: float) -> bytes:
    return b"".join(
        show(x, top - 14 * at, cell)
        for at, row in enumerate(_TABLE)
        for x, cell in zip((50, 200, 300), row, strict=True)
    )


def _outline(pdf: RawPdf, marks: list[tuple[str, int, int]]) -> bytes:
    root = pdf.add(b"")
    numbers = [pdf.add(b"") for _ in marks]
    for at, (title, page, top) in enumerate(marks):
        after = b"/Next %d 0 R" % numbers[at + 1] if at + 1 < len(marks) else b""
        entry = b"<</Title(%s)/Parent %d 0 R/Dest[%d 0 R/XYZ 0 %d 0]%s>>"
        pdf.objects[numbers[at] - 1] = entry % (title.encode(), root, pdf.kids[page], top, after)
    pdf.objects[root - 1] = b"<</First %d 0 R/Last %d 0 R/Count %d>>" % (numbers[0], numbers[-1], len(marks))
    return b"/Outlines %d 0 R" % root
