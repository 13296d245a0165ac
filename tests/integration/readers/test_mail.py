"""Mail: headers, text, attachments."""

from __future__ import annotations

from email.message import EmailMessage

import pytest

from llama_index_contextual.errors import ReadError
from tests.integration.readers.office_files import docx, mail, read, xlsx
from tests.support.pdf_files import lines, pdf_of


def test_headers_come_first_and_are_metadata() -> None:
    parsed = read("a.eml", mail("Angebot für Büro 3", "Dear Bob,\n\n  the offer.\n\nAda"))

    assert parsed.text == (
        "Subject: Angebot für Büro 3\nFrom: Ada <ada@example.org>\nTo: bob@example.org\n"
        "Date: Mon, 01 Jan 2024 10:00:00 +0100\n\nDear Bob,\n\n  the offer.\n\nAda"
    )
    assert parsed.title == "Angebot für Büro 3"
    assert dict(parsed.metadata) == {
        "mail_from": "Ada <ada@example.org>",
        "mail_to": "bob@example.org",
        "mail_date": "2024-01-01T10:00:00+01:00",
    }


def test_the_plain_version_is_read_and_the_html_version_if_there_is_no_other() -> None:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("plain")
    message.add_alternative("<p>rich</p>", subtype="html")
    assert read("a.eml", message.as_bytes()).text.endswith("\n\nplain")

    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("<table><tr><td><h1>Offer</h1></td><td>rich</td></tr></table>", subtype="html")
    parsed = read("a.eml", message.as_bytes())
    assert parsed.text.endswith("# Offer\n\nrich")
    assert [heading.title for heading in parsed.map.headings] == ["Offer"]


def test_attachments_are_sections_with_their_own_below() -> None:
    attachments = (
        ("offer.docx", docx((1, "Price"), "Ten boats.")),
        ("sums.xlsx", xlsx(Sums=[["Boat", "Price"], ["Swan", 5]])),
        ("notes.md", b"# Note\n\nText"),
        ("list.csv", b"a,b\n1,2\n"),
        ("scan.pdf", pdf_of([lines(["A page of text"])]).data()),
        ("photo.jpg", b"\xff\xd8\xff"),
        ("broken.xlsx", b"PK"),
        ("empty.txt", b""),
    )
    parsed = read("a.eml", mail("Offer", "See below.", *attachments))

    sections = {word: parsed.map.section(parsed.text.index(word)) for word in ("See", "Ten", "Swan", "Text", "A page")}
    assert sections == {
        "See": None,
        "Ten": "Attachment: offer.docx > Price",
        "Swan": "Attachment: sums.xlsx > Sums",
        "Text": "Attachment: notes.md > Note",
        "A page": "Attachment: scan.pdf",
    }
    assert parsed.warnings == (
        "attachment 'photo.jpg' was left out: it has the type .jpg and is not read: convert it to PDF, HTML or text",
        "attachment 'broken.xlsx' was left out: it is damaged or truncated (File is not a zip file): copy or save it "
        "again",
        "attachment 'empty.txt' was left out: it is empty",
    )


def test_an_attached_message_is_named_by_its_subject() -> None:
    inner, outer = EmailMessage(), EmailMessage()
    inner["Subject"], inner["From"] = "Old/news", "eve@example.org"
    inner.set_content("inner text")
    outer["From"] = "ada@example.org"
    outer.set_content("see attached")
    outer.add_attachment(inner)
    parsed = read("a.eml", outer.as_bytes())
    assert parsed.map.section(parsed.text.index("inner text")) == "Attachment: Old news.eml"


def test_images_in_the_text_and_signatures_are_not_reported() -> None:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("text")
    message.add_attachment(b"x", maintype="image", subtype="png", filename="logo.png", cid="<logo>")
    message.add_attachment(b"x", maintype="application", subtype="pkcs7-signature", filename="smime.p7s")
    assert read("a.eml", message.as_bytes()).warnings == ()


def test_attachments_of_an_alternative_that_is_not_read_are_kept() -> None:
    rich = EmailMessage()
    rich.set_content("<p>rich</p>", subtype="html")
    rich.add_attachment(b"inside", maintype="text", subtype="plain", filename="a.txt")
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("plain")
    message.make_alternative()
    message.attach(rich)
    assert read("a.eml", message.as_bytes()).text == ("From: ada@example.org\n\nplain\n\n# Attachment: a.txt\n\ninside")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Just some text.\n\nMore.", "is not a mail: it has no headers such as From and Subject"),
        (b"From: a@b\nContent-Type: multipart/encrypted; boundary=x\n\n--x\n\n--x--", "is encrypted"),
        (b"From: a@b\nContent-Type: application/pkcs7-mime\n\nMIIB", "is encrypted"),
        (b"  \n", "is empty"),
    ],
)
def test_what_is_not_a_readable_mail(data: bytes, reason: str) -> None:
    with pytest.raises(ReadError) as caught:
        read("a.eml", data)
    assert caught.value.reason.startswith(reason)
