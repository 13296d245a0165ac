"""Emails: which parts are the text, line ends, and flowed text."""

from __future__ import annotations

from email.mime.base import MIMEBase
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest

from tests.integration.readers.office_files import read

LETTER = "Dear all, the rent rises to 900 EUR in May."


def parts(kind: str, *inner: MIMEBase) -> MIMEMultipart:
    message = MIMEMultipart(kind)
    for part in inner:
        message.attach(part)
    return message


def plain(text: str) -> MIMEText:
    return MIMEText(text, "plain", "utf-8")


def rich(text: str) -> MIMEText:
    return MIMEText(text, "html", "utf-8")


def body(message: MIMEBase) -> str:
    message["From"] = "ada@example.org"
    return read("a.eml", message.as_bytes()).text.removeprefix("From: ada@example.org\n\n")


def test_an_html_text_beside_a_plain_footer_is_read() -> None:
    footer = plain("-- \nCouncil mailing list")
    assert body(parts("mixed", rich(f"<p>{LETTER}</p>"), footer)) == f"{LETTER}\n\n-- \nCouncil mailing list"
    inner = parts("alternative", plain(""), rich(f"<p>{LETTER}</p>"))
    assert body(parts("mixed", inner, plain("list"))) == f"{LETTER}\n\nlist"


def test_texts_between_attachments_are_all_read_in_order() -> None:
    attached = MIMEText("a,b\n1,2\n", "csv")
    attached.add_header("Content-Disposition", "attachment", filename="x.csv")
    text = body(parts("mixed", plain("See the file."), attached, rich("<p>PS: deliver by <b>9 May</b>.</p>")))
    assert text == "See the file.\n\nPS: deliver by 9 May.\n\n# Attachment: x.csv\n\na  b\n1  2"


def test_of_two_versions_the_plain_one_is_read() -> None:
    versions = plain(LETTER), rich(f"<html><style>p {{}}</style><p>{LETTER}</p></html>")
    assert body(parts("alternative", *versions)) == LETTER
    assert body(parts("mixed", *versions)) == LETTER


@pytest.mark.parametrize(
    "stub",
    [
        "Your mail program does not show HTML mails.",
        "View this newsletter in your browser: https://news.example/17",
        "This is a multi-part message.",
    ],
)
def test_the_html_version_is_read_if_the_plain_one_only_refers_to_it(stub: str) -> None:
    assert body(parts("alternative", plain(stub), rich("<p>The tariff rises to 41 cents on 1 June.</p>"))) == (
        "The tariff rises to 41 cents on 1 June."
    )
    related = parts("related", rich("<p>The tariff rises to 41 cents on 1 June.</p>"))
    assert "41 cents" in body(parts("mixed", parts("alternative", plain(stub), related)))


LIST = "".join(f"<li>Tenant {name} pays {90 + at} EUR" for at, name in enumerate(("Ada", "Bo", "Cy", "Di", "Ed") * 8))
NOTICE = "This mail is meant for the person named above only. " + " ".join(f"Rule {n} applies." for n in range(60))


@pytest.mark.parametrize(
    ("stub", "page", "fact"),
    [
        ("Your invoice:\n" + "https://pay.example/a/b?c=d\n" * 200, "<p>Your invoice: 2,450 EUR, due in May", "2,450"),
        (f"{LETTER}\n{NOTICE}", f"<p>{LETTER}<ul>{LIST}</ul><p>{NOTICE}", "Tenant Ed pays 94"),
    ],
)
def test_the_html_version_is_read_if_the_plain_one_is_only_a_part_of_it(stub: str, page: str, fact: str) -> None:
    assert fact in body(parts("alternative", plain(stub), rich(page)))


def test_a_long_plain_version_is_read_if_it_has_words_of_its_own() -> None:
    own = " ".join(f"word{n}" for n in range(200))
    assert body(parts("alternative", plain(own), rich(f"<p>{LETTER}<ul>{LIST}</ul>"))) == own


def test_a_plain_version_is_not_a_stub_because_the_html_version_has_pictures_only() -> None:
    assert body(parts("alternative", plain(LETTER), rich("<a>View in browser</a><img src=x>"))) == LETTER


def test_paragraphs_of_a_mail_with_crlf_are_paragraphs() -> None:
    lines = ("Dear all,", "the visit took place in", "March. They found", "7. of the old type.", "", "Next: May.")
    data = "\r\n".join(("From: a@example.org", "Content-Type: {}", "", *lines))
    assert read("a.eml", data.format("text/plain").encode()).text == "From: a@example.org\n\n" + "\n".join(lines)
    page = data.format("text/html").replace("\r\n\r\nDear", "\r\n\r\n<pre>Dear")
    assert read("a.eml", page.encode()).text == "From: a@example.org\n\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("parameters", "lines", "text"),
    [
        ("", ["A long ", "line.", "New."], "A long line.\nNew."),
        ("; delsp=yes", ["ウェブ ", "サイト"], "ウェブサイト"),
        ("", ["> quoted ", "> text", "own ", "text"], "> quoted text\nown text"),
        ("", [" >no quotation", "", "-- ", "Ada"], ">no quotation\n\n-- \nAda"),
        ("", ["> a ", ">> b"], "> a\n>> b"),
    ],
)
def test_flowed_text_is_joined(parameters: str, lines: list[str], text: str) -> None:
    head = f"From: a@example.org\r\nContent-Type: text/plain; charset=utf-8; format=flowed{parameters}\r\n\r\n"
    parsed = read("a.eml", (head + "\r\n".join(lines)).encode())
    assert [line.rstrip() for line in parsed.text.splitlines()[2:]] == [line.rstrip() for line in text.split("\n")]
