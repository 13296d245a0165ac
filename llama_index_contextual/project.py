"""Projects: isolated knowledge bases in one root folder. Wiring only; the work is done by the components."""

from __future__ import annotations

import contextlib
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.project_info import ProjectInfo, VersionInfo, describe_project, list_versions
from llama_index_contextual.project_reading import ProjectReading
from llama_index_contextual.project_writing import ProjectWriting
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.project_file import write_lock
from llama_index_contextual.storage.publish import current_name
from llama_index_contextual.storage.verify import VerifyReport, repair_project, verify_project


class Project(ProjectWriting, ProjectReading):
    """One knowledge base: its documents, contexts and indexes, in its own directory.

    Made by `ProjectManager`. What changes it is in `ProjectWriting`, what asks it in `ProjectReading`, its upkeep here.
    """

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first."""
        return list_versions(self.directory)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Compare every file with its SHA-256 and check the ledger.

        Args:
            repair: Before, remove leftovers and damaged versions that are not live, and rescue a damaged ledger's rows.
        """
        return (repair_project if repair else verify_project)(self.directory)

    def export(self, directory: str | Path) -> None:
        """Write the live version for LlamaIndex's stock stores; see `storage/export.py` for how to load it.

        Raises:
            InputError: There is something in the directory already.
        """
        from llama_index_contextual.storage.export import export_version

        export_version(self._live.current().version, Path(directory))

    def info(self) -> ProjectInfo:
        """Return what the project is and holds."""
        live = None if current_name(self.directory) is None else self._live.current().version.manifest
        return describe_project(self.directory, self.config, live)

    def import_contexts(self, path: str | Path) -> int:
        """Add the contexts of a file that `Ledger.export_contexts` wrote to the ledger, and return their number."""
        with write_lock(self.directory), contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            return ledger.import_contexts(Path(path))

    def export_contexts(self, path: str | Path) -> int:
        """Write the contexts that were paid for as JSON lines, and return their number."""
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            return ledger.export_contexts(Path(path))

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"
