"""Check and open Office files, which are ZIP archives of XML.

Macros are never run, and links to other files and pages are never followed.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Container, Mapping
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import unquote

from llama_index_contextual.readers.files import FileSource, one_line

Element = Any  # lxml ships no types

MAX_PARTS = 20_000
"""Maximum number of files in an archive."""
_PIECE = 1 << 20
_DECLARATION = re.compile(rb"<!(?:DOCTYPE|ENTITY)")
_OPEN_DOCUMENT = b"application/vnd.oasis.opendocument"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_R = (
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "http://purl.oclc.org/ooxml/officeDocument/relationships",
)
ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_READABLE = frozenset(("t", "oMath", "chart", "relIds"))
_R_ATTRIBUTES = tuple(f"{{{namespace}}}" for namespace in _R)


def check_package(source: FileSource) -> None:
    """Check an Office file before it is opened.

    Raises:
        ReadError: The file is not an Office file, is encrypted, is too large when unpacked, or declares XML entities.
    """
    suffix = source.path.suffix
    if source.data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in source.data:
            raise source.error("is encrypted: save a copy without password")
        raise source.error(f"is an old Office file with a new extension: open it and save it as {suffix}")
    if not source.data.startswith(b"PK"):
        raise source.error(f"is not a {suffix.removeprefix('.').upper()} file: give it the extension of its type")
    with zipfile.ZipFile(BytesIO(source.data)) as archive:
        parts = archive.infolist()
        if parts and parts[0].filename == "mimetype" and archive.open(parts[0]).read(50).startswith(_OPEN_DOCUMENT):
            raise source.error(f"is an OpenDocument file with a new extension: open it and save it as {suffix}")
        if len(parts) > MAX_PARTS:
            raise source.error(f"consists of {len(parts):,} parts, more than the limit of {MAX_PARTS:,}")
        source.account.unpack(sum(part.file_size for part in parts))
        for part in parts:
            if part.filename.lower().endswith((".xml", ".rels", ".vml")):
                _check_part(source, archive, part)


def _check_part(source: FileSource, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """Unpack an XML part piece by piece and reject document type declarations, because they can define entities.

    Office programs do not write such declarations.
    """
    before = b""
    with archive.open(part) as file:
        while piece := file.read(_PIECE):
            if _DECLARATION.search((before + piece).replace(b"\0", b"")):
                where = f"declares XML entities in {one_line(part.filename)!r}"
                raise source.error(f"{where}, which no Office program does: it may be made to do harm")
            before = piece[-64:]


class Relation(NamedTuple):
    """Reference from one part of a package to another.

    Attributes:
        kind: The last component of the type, such as "image" or "header".
        target: Name of the part.
    """

    kind: str
    target: str


class Package:
    """The parts of an Office file that `check_package` has accepted.

    Attributes:
        damaged: Names of the parts that are missing or that `xml` could not parse.
    """

    def __init__(self, data: bytes) -> None:
        self.archive = zipfile.ZipFile(BytesIO(data))
        self.damaged: dict[str, None] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the parts."""
        return frozenset(self.archive.namelist())

    def read(self, name: str) -> bytes:
        """Return the bytes of a part."""
        return self.archive.read(name)

    def xml(self, name: str) -> Element | None:
        """Return the root element of a part, or None if there is no such part or if it is damaged."""
        from lxml import etree

        if name not in self.names or name in self.damaged:
            return None
        try:
            return parse_xml(self.read(name))
        except etree.XMLSyntaxError:
            self.damaged[name] = None
            return None

    def warnings(self) -> list[str]:
        """Return a warning for each damaged part."""
        return [
            f"{one_line(name)} in the file is missing or damaged, and left out: open the file, repair it and save it"
            for name in self.damaged
        ]

    def relations(self, name: str) -> Mapping[str, Relation]:
        """Return the other parts to which a part refers, by relationship id. External targets are omitted."""
        folder = posixpath.dirname(name)
        relations = {}
        for element in self._relation_elements(name):
            if element.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, unquote(element.get("Target", "")))).lstrip("/")
                relations[element.get("Id", "")] = Relation(element.get("Type", "").rpartition("/")[2], target)
        return relations

    def relation_ids(self, name: str) -> frozenset[str]:
        """Return the ids of all relationships of a part."""
        return frozenset(element.get("Id", "") for element in self._relation_elements(name))

    def _relation_elements(self, name: str) -> list[Element]:
        folder, file = posixpath.split(name)
        root = self.xml(posixpath.join(folder, "_rels", f"{file}.rels"))
        return [] if root is None else list(root.iter(_RELATION))

    def main_part(self) -> str:
        """Return the name of the part that contains the document, the workbook or the presentation."""
        return next((to.target for to in self.relations("").values() if to.kind == "officeDocument"), "")


def parse_xml(data: bytes) -> Element:
    """Parse XML without resolving entities or fetching anything.

    Raises:
        RecursionError: The elements are nested too deeply.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, huge_tree=True)
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        if "depth" in str(error):
            raise RecursionError from error
        raise


def relation_id(element: Element, name: str) -> str:
    """Return the attribute of an element that contains a relationship id, or an empty string."""
    return next((value for namespace in _R if (value := element.get(f"{{{namespace}}}{name}"))), "")


def remove_dangling_ids(root: Element, ids: Container[str]) -> None:
    """Remove the references of a part to relationships that do not exist."""
    for element in root.iter():
        for key in element.attrib:
            if key.startswith(_R_ATTRIBUTES) and element.get(key) not in ids:
                del element.attrib[key]


def use_choices(root: Element) -> None:
    """Replace alternatives by the first choice if it has text, a chart or a diagram, and otherwise by the fallback."""
    for element in list(root.iter(ALTERNATIVES)):
        branches = {local(child): child for child in reversed(element)}
        choice, fallback = branches.get("Choice"), branches.get("Fallback")
        is_readable = choice is not None and any(local(each) in _READABLE for each in choice.iter())
        branch = choice if is_readable or fallback is None else fallback
        parent, at = element.getparent(), element.getparent().index(element)
        parent[at : at + 1] = [] if branch is None else list(branch)


def local(element: Element) -> str:
    """Return the name of an element without its namespace, or an empty string for a processing instruction."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
