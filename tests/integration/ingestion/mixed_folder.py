"""A folder of 40 files as people have them: all types that are read, broken ones, and others."""

from __future__ import annotations

from pathlib import Path

from tests.integration.readers.office_files import archive, docx, mail, pptx, replaced, saved, workbook, xlsx
from tests.support.pdf_files import lines, pdf_of

FIGURES = [["Region", "2023", "2024"], ["North", 1200, 1310], ["South", 800, 790]]
OFFER = (
    "We build the jetty of larch wood in three weeks, and take the old one down before. It costs nine thousand. Half "
    "of it is due when the work begins, and the rest when the harbour master has seen it."
)
OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1_000)


def files() -> dict[str, bytes]:
    """Return the content of each file by its path: 27 that are read, 13 that are not."""
    hidden = workbook(Shown=FIGURES, Lists=[["secret"]])
    hidden["Lists"].sheet_state = "hidden"
    pdf = pdf_of([lines(["The harbour master signs for the boats."])]).data()
    page = b"<title>Opening hours</title><h1>Opening hours</h1><p>The boat house opens at nine.</p>"
    good = {
        "notes/readme.md": b"# Boat house\n\nNotes of the boat house.\n\n## Keys\n\nThe keys hang by the door.",
        "notes/keys.markdown": b"# Key list\n\nEach key has a number.",
        "notes/rules.txt": b"1. Boats\n\nEvery boat has to be cleaned after use by the one who took it.",
        "notes/todo.text": "Farbe kaufen für das Dach".encode("cp1252"),
        "contracts/lease.docx": docx((0, "Lease"), (1, "Rent"), "The rent of the boat house is 900 a month.", FIGURES),
        "contracts/sale.docx": docx("1. Object", "The seller sells the rowing boat Swan to the buyer for 5,000."),
        "contracts/annex.docm": docx((1, "Annex"), "List of boats that belong to the house."),
        "contracts/signed.pdf": pdf,
        "contracts/draft.pdf": pdf_of([lines([f"Draft page {n} about the mooring."]) for n in range(3)]).data(),
        "slides/season.pptx": pptx(("Season 2024", "More members\nFewer boats"), ("Outlook", "A new jetty")),
        "slides/board.pptx": pptx(("Board meeting", "Budget of the jetty")),
        "slides/macro.pptm": pptx(("Training", "Rowing for beginners")),
        "figures/members.xlsx": xlsx(Members=FIGURES, Fees=[["Kind", "Fee"], ["Adult", 120], ["Child", 40]]),
        "figures/budget.xlsx": saved(hidden),
        "figures/sums.xlsx": xlsx(Sums=[["Item", "Sum"], ["Jetty", 9_000], ["Total", "=SUM(B2:B2)"]]),
        "figures/tool.xlsm": replaced(xlsx(Tool=FIGURES), {"xl/vbaProject.bin": b"Sub AutoOpen()"}),
        "figures/boats.csv": b"Boat,Length,Year\nSwan,7.5,1999\nHeron,8,2005\n",
        "figures/preise.csv": "Boot;Preis\nSchwan;1,50\nKrähe;2,50\n".encode("cp1252"),
        "figures/log.tsv": b"Day\tBoats\n1 May\t12\n2 May\t9\n",
        "web/hours.html": page,
        "web/contact.htm": b"<p>Write to the harbour master.</p>",
        "web/strict.xhtml": b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><h1>Jetty</h1>Plan</html>',
        "mail/offer.eml": mail("Offer for the jetty", "Find the offer attached.", ("offer.docx", docx(OFFER))),
        "mail/photo.eml": mail("Photo", "A photo of the jetty.", ("jetty.jpg", b"\xff\xd8\xff")),
        "mail/plain.eml": mail("Keys", "The keys were found."),
        "mail/thanks.eml": mail("Thanks", "Thank you for the boat."),
        "mail/minutes.eml": mail("Minutes", "See the table.", ("minutes.xlsx", xlsx(Votes=FIGURES))),
    }
    bad = {
        "contracts/broken.docx": docx("text")[:2_000],
        "contracts/locked.docx": OLD + "EncryptedPackage".encode("utf-16-le"),
        "contracts/old.doc": OLD,
        "contracts/broken.pdf": b"%PDF-1.7 nothing else",
        "slides/old.ppt": OLD,
        "slides/renamed.pptx": OLD,
        "figures/old.xls": OLD,
        "figures/bomb.xlsx": replaced(xlsx(A=FIGURES), {"xl/media/zeros.bin": bytes(60_000_000)}),
        "figures/copy.csv": good["figures/boats.csv"],
        "web/empty.html": b"",
        "mail/saved.msg": OLD,
        "photos.zip": archive({"a.jpg": b"\xff\xd8\xff"}),
        "photos/jetty.heic": b"ftypheic",
    }
    return good | bad


def write(folder: Path) -> None:
    for name, data in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
