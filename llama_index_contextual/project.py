"""Projects: isolated knowledge bases in one root folder. Wiring only; the work is done by the components."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.project_info import ProjectInfo, VersionInfo, describe_project, list_versions
from llama_index_contextual.project_reading import ProjectReading
from llama_index_contextual.project_writing import ProjectWriting
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.project_file import write_lock
from llama_index_contextual.storage.publish import current_name
from llama_index_contextual.storage.verify import VerifyReport, repair_project, verify_project

if TYPE_CHECKING:
    from llama_index_contextual.evaluation.compare import Comparison
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.run import Questions
    from llama_index_contextual.evaluation.sweep import Sweep
    from llama_index_contextual.evaluation.workspace import Origin


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

    def compare(self, questions: Questions | None = None, **options: Any) -> Comparison:
        """Build these documents without context, with structural and with LLM context, and say which one pays.

        Args:
            questions: Questions with evidence, or a file of them; None lets the project's LLM write some.
            **options: Of `evaluation.variants.compare_variants`: variants, sample, ks, metric, max_cost, progress.

        Raises:
            InputError: A variant or option is unknown, or no question has its evidence in the sample.
            ModelError: A variant or the questions need an LLM that cannot be made or reached.
        """
        from llama_index_contextual.evaluation.variants import compare_variants

        return compare_variants(self._origin(), questions, **options)

    def generate_questions(self, number: int = 50, *, seed: int = 0) -> list[Question]:
        """Let the project's LLM write questions about its documents, each with the chunk that answers it as evidence.

        Raises:
            ModelError: There is no LLM, or it cannot be reached.
        """
        from llama_index_contextual.evaluation.generate import generate_questions

        llm = self._llm or self._load_answering_llm()
        return generate_questions(self._live.current().version, llm, number=number, seed=seed)

    def sweep(self, questions: Questions, **options: Any) -> Sweep:
        """Build these documents with several chunk sizes and kinds of context, and ask them in several modes.

        Args:
            questions: Questions with evidence, or a file of them.
            **options: Of `evaluation.sweep.sweep_variants`: chunk_sizes, contexts, modes, top_ks, sample.

        Raises:
            InputError: There is nothing to try, or the evidence cannot be compared over chunk sizes.
        """
        from llama_index_contextual.evaluation.sweep import sweep_variants

        return sweep_variants(self._origin(), questions, **options)

    def _origin(self) -> Origin:
        from llama_index_contextual.evaluation.workspace import Origin

        return Origin(
            directory=self.directory,
            config=self.config,
            live=self._live,
            llm=self._llm,
            load_embed_model=lambda: self.embed_model,
        )

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"
