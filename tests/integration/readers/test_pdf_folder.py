"""A folder of PDFs, most of them bad: each has its message, and the good ones are read."""

from __future__ import annotations

from pathlib import Path

from llama_index_contextual.readers import ReadLimits, read_documents
from tests.integration.readers.test_pdf_hostile import nested_arrays, pages_of_themselves
from tests.support.pdf_files import RawPdf, encrypted, lines, pdf_of
from tests.support.trees import reasons, write

SCAN = b"BI /W 1 /H 1 /CS /G /BPC 8 ID \x00 EI"


def test_each_bad_pdf_has_its_message_and_the_rest_goes_on(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    good = pdf_of([lines(["First"]), lines(["Second"])]).data()
    odd = nested_arrays()
    odd.page(lines(["The page after the odd one"]))
    files = {
        "a_good.pdf": good,
        "b_empty.pdf": b"",
        "c_no_pages.pdf": RawPdf().data(),
        "d_truncated.pdf": good[: len(good) // 3],
        "e_encrypted.pdf": encrypted("sesame"),
        "f_encrypted.pdf": encrypted("mustard"),
        "g_itself.pdf": pages_of_themselves().data(),
        "h_odd_page.pdf": odd.data(),
        "i_scan.pdf": pdf_of([lines(["Cover"]), lines(["Contents"]), SCAN]).data(),
        "j_many.pdf": pdf_of([lines([f"Page {at}"]) for at in range(6)]).data(),
        "k_copy.pdf": good,
        "l_\x1b[2J\u202e.pdf": b"no PDF",
        "z_good.pdf": pdf_of([lines(["Last"])]).data(),
    }
    for name, data in files.items():
        write(docs / name, data)
    result = read_documents(
        [docs],
        limits=ReadLimits(max_pages=5),
        passwords={"e_encrypted.pdf": "sesame", "f_encrypted.pdf": "ketchup"},
        ocr=None,
        pdf_engine="pypdf",
    )

    assert {document.metadata["file_name"]: document.text for document in result} == {
        "a_good.pdf": "First\nSecond",
        "e_encrypted.pdf": "A secret clause",
        "h_odd_page.pdf": "\nThe page after the odd one",
        "i_scan.pdf": "Cover\nContents\n",
        "z_good.pdf": "Last",
    }
    assert {name: reason.partition(" (")[0] for name, reason in reasons(result).items()} == {
        "b_empty.pdf": "the file is empty",
        "c_no_pages.pdf": "the PDF has no pages",
        "d_truncated.pdf": "the PDF is damaged or truncated",
        "f_encrypted.pdf": "the PDF is encrypted, and the password given for it does not open it: give the right one",
        "g_itself.pdf": "the PDF is damaged or truncated",
        "j_many.pdf": "has more than 5 pages: split it into smaller files",
        "k_copy.pdf": f"has the same content as {docs / 'a_good.pdf'}",
        "l_\\x1b[2J\\u202e.pdf": "this is not a PDF: it does not begin with %PDF-",
    }
    said = {Path(warning.path).name: warning.message.partition(" (")[0] for warning in result.warnings}
    assert said == {
        "h_odd_page.pdf": "page 1 was left out: pypdf cannot parse it",
        "i_scan.pdf": "page 3 has no text: it needs OCR",
    }
