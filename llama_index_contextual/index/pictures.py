"""The pictures of the figures of a part.

figures/<sha256>.png     a picture, which is stored once for all documents of the part
figures.json             names of these files, with their sizes

Only `figures.json` is listed in the manifest: the name of a picture is its SHA-256 hash, so that it is checked when it
is read, and opening a part does not read the pictures. The records of the figures are in the metadata of their
documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.figures import MAX_PICTURE_BYTES, Figure, read_picture
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import FIGURES_DIRECTORY, FIGURES_FILE, Check, damage_error
from llama_index_contextual.metadata import DocumentMap

_NAME = re.compile(r"[0-9a-f]{64}\.(?:png|jpg)")


def figures_of(metadata: Mapping[str, Any]) -> list[Figure]:
    """Return the figures in the metadata of a document that have a picture."""
    return [figure for figure in DocumentMap.from_metadata(dict(metadata)).figures if figure.sha256]


class PictureWriter:
    """Writer of the pictures of a part.

    Args:
        directory: Directory of the part.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def add(self, figures: Iterable[Figure], read: Callable[[Figure], bytes | None]) -> None:
        """Store the pictures of figures.

        Args:
            figures: The figures.
            read: Function that returns the picture of a figure, or None if it is lost.
        """
        for figure in figures:
            if figure.file_name not in self._sizes and (data := read(figure)) is not None:
                self._write(figure.file_name, data)

    def copy(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Copy pictures of another part. A damaged picture is listed and not copied, so that a check still finds it.

        Args:
            folder: Folder of the pictures.
            sizes: Names of the files, with their sizes.
        """
        for name, size in sizes.items():
            if name in self._sizes:
                continue
            self._sizes[name] = size
            with suppress(CorruptVersionError):
                self._write(name, read_picture(folder / name))

    def _write(self, name: str, data: bytes) -> None:
        files.make_directory(self._directory / FIGURES_DIRECTORY)
        files.write(self._directory / FIGURES_DIRECTORY / name, data, sync=False)
        self._sizes[name] = len(data)

    def finish(self) -> None:
        """Write the list of the pictures, unless there are none. Nothing is synced."""
        if self._sizes:
            files.write(self._directory / FIGURES_FILE, json.dumps(self._sizes, indent=0).encode(), sync=False)


def read_sizes(directory: Path) -> dict[str, int]:
    """Return the names of the pictures of a part with their sizes.

    Raises:
        CorruptVersionError: The list is damaged.
    """
    label = f"{directory.parent.name}/{directory.name}/{FIGURES_FILE}"
    try:
        return parse_sizes(files.read(directory / FIGURES_FILE))
    except (OSError, ValueError) as error:
        raise damage_error(label, "has changed since it was published") from error


def parse_sizes(content: bytes) -> dict[str, int]:
    """Return the names and sizes in the list of the pictures of a part.

    Raises:
        ValueError: The content is not such a list.
    """
    sizes = json.loads(content)
    if not isinstance(sizes, dict) or not all(map(_NAME.fullmatch, sizes)):
        raise ValueError("names that are not those of pictures")
    if not all(type(size) is int for size in sizes.values()):
        raise ValueError("sizes that are not numbers")
    return sizes


def sha256_of(name: str) -> str:
    """Return the SHA-256 hash of the content of a picture, given the name of its file."""
    return name.partition(".")[0]


def picture_faults(directory: Path, check: Check) -> Iterator[CorruptVersionError]:
    """Yield an error for each picture of a part that is missing or damaged; the list must not be damaged.

    Args:
        directory: Directory of the part.
        check: "size" to compare only the sizes.
    """
    for name, size in read_sizes(directory).items():
        path = directory / FIGURES_DIRECTORY / name
        try:
            if check == "size":
                if path.stat().st_size != size or size > MAX_PICTURE_BYTES:
                    label = "/".join(path.parts[-4:])
                    yield CorruptVersionError(f"{label} has another size than {size} bytes.", file=label)
            else:
                read_picture(path)
        except OSError:
            label = "/".join(path.parts[-4:])
            yield CorruptVersionError(f"{label} is missing.", file=label)
        except CorruptVersionError as error:
            yield error


def is_picture(file: str | None) -> bool:
    """Return whether a path relative to a project is that of a picture."""
    return PurePosixPath(file or "").parts[2:3] == (FIGURES_DIRECTORY,)
