"""Read CSV and TSV files."""

from __future__ import annotations

import csv
import re
from io import StringIO

from llama_index_contextual.readers.builder import DocumentBuilder
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.text import decode

DELIMITERS = ",;\t|"
MAX_FIELD = 10_000_000
"""Maximum length of a cell in characters; a longer cell indicates that a quotation mark was not closed."""
_SAMPLE = 200_000
_DECLARED = re.compile(r'(?:sep=([^\r\n"])|"sep=([^\r\n"])")[;,\t]{0,1000}(?:\r\n?|\n)', re.IGNORECASE)


def read_csv(source: FileSource) -> ParsedFile:
    """Read the rows of a CSV or TSV file as a table.

    Args:
        source: The file.
    """
    text, warnings = decode(source)
    builder = DocumentBuilder(source.account)
    builder.warnings += warnings
    csv.field_size_limit(MAX_FIELD)
    if declared := _DECLARED.match(text):  # Excel reads this line as the delimiter of the file
        text = text[declared.end() :]
    delimiter = "\t" if source.path.suffix.lower() == ".tsv" else _delimiter(text[:_SAMPLE])
    delimiter = (declared[1] or declared[2]) if declared else delimiter
    builder.table(csv.reader(StringIO(text, newline=""), delimiter=delimiter))
    return builder.parsed(None, source.digest)


def _delimiter(sample: str) -> str:
    """Return the delimiter for which the most rows of a CSV sample have the same number of cells.

    In case of a tie, the delimiter with more cells per row is chosen.
    """
    lines = sample.splitlines(keepends=True)[:100]

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        usual = max(set(widths), key=widths.count, default=1)
        return (round(widths.count(usual) / len(widths), 1), usual) if usual > 1 else (0.0, 0)

    return max(DELIMITERS, key=score)
