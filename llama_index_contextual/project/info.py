"""Settings, size and cost of a project, and a list of its versions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger, LedgerInfo
from llama_index_contextual.index.receipts import ProjectCost
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory, version_names


@dataclass(frozen=True, kw_only=True)
class ProjectInfo:
    """Settings, size and cost of a project.

    Attributes:
        name: Its name.
        config: Its settings.
        version: Name of the live version, or None.
        documents: Number of documents in it.
        chunks: Number of chunks in it.
        fallback_chunks: Number of chunks with the structural context because the LLM failed to write one;
            `retry_failed` requests it again, a refused one only with `max_cost`.
        tokens: Tokens of the chunks, overlaps counted twice.
        bytes: Size of the live version on disk.
        ledger: Contexts and embeddings in the ledger.
        cost: Their cost so far, in total and by run.
    """

    name: str
    config: ProjectConfig
    version: str | None
    documents: int
    chunks: int
    fallback_chunks: int
    tokens: int
    bytes: int
    ledger: LedgerInfo
    cost: ProjectCost


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """One version of a project.

    Attributes:
        name: Its name.
        created: When it was published, UTC, ISO 8601; None if its manifest cannot be read.
        documents: Number of documents; None if its manifest cannot be read.
        chunks: Number of chunks; None if its manifest cannot be read.
        live: Whether it answers queries.
        damage: Why its manifest cannot be read, and how to repair it; None if it can be read.
        package: Release of this package that wrote it; None if its manifest cannot be read.
    """

    name: str
    created: str | None
    documents: int | None
    chunks: int | None
    live: bool
    damage: str | None = None
    package: str | None = None


def describe_project(project_dir: Path, config: ProjectConfig, live: OpenVersion | None) -> ProjectInfo:
    """Return the settings, size and cost of a project; nothing is written.

    Args:
        project_dir: Directory of the project.
        config: Its settings.
        live: Its live version, or None before the first one.
    """
    ledger, cost = _ledger_info(project_dir / LEDGER_FILE)
    return ProjectInfo(
        name=project_dir.name,
        config=config,
        version=live.name if live else None,
        documents=len(live.records) if live else 0,
        chunks=live.manifest.chunks if live else 0,
        fallback_chunks=sum(len(record.fallback_chunks) for record in live.records) if live else 0,
        tokens=sum(record.tokens for record in live.records) if live else 0,
        bytes=live.manifest.size if live else 0,
        ledger=ledger,
        cost=cost,
    )


def list_versions(project_dir: Path) -> list[VersionInfo]:
    """Return the versions on disk, oldest first; `damage` is set for a damaged one.

    Raises:
        CorruptVersionError: CURRENT is damaged; the message names the versions.
    """
    live = current_name(project_dir)
    versions = (_version_info(version_directory(project_dir, name), live) for name in version_names(project_dir))
    return [version for version in versions if version is not None]


def _version_info(directory: Path, live: str | None) -> VersionInfo | None:
    name = directory.name
    try:
        manifest = read_manifest(directory)
    except (CorruptVersionError, FormatError) as error:
        if not directory.is_dir():
            return None  # another process has just removed it
        return VersionInfo(name=name, created=None, documents=None, chunks=None, live=name == live, damage=str(error))
    return VersionInfo(
        name=name,
        created=manifest.created,
        documents=manifest.documents,
        chunks=manifest.chunks,
        live=name == live,
        package=manifest.package,
    )


def project_cost(project_dir: Path) -> ProjectCost:
    """Return the cost of a project so far; nothing is written."""
    return _ledger_info(project_dir / LEDGER_FILE)[1]


def _ledger_info(path: Path) -> tuple[LedgerInfo, ProjectCost]:
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.info(), ledger.receipts.cost()
