"""Projects: isolated knowledge bases in one root folder. Wiring only; the work is done by the components."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual.calls import to_its_end
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, FormatError, NoVersionError
from llama_index_contextual.ingestion.removal import remove_documents
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project_info import (
    ProjectInfo,
    VersionInfo,
    describe_project,
    list_versions,
    project_cost,
)
from llama_index_contextual.project_reading import ProjectReading
from llama_index_contextual.project_writing import ProjectWriting
from llama_index_contextual.storage.check import read_manifest
from llama_index_contextual.storage.current import current_name, version_directory
from llama_index_contextual.storage.forget import Forgotten, forget
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.ledger_lines import export_contexts, import_contexts
from llama_index_contextual.storage.project_file import project_ledger, read_config, write_config, write_lock
from llama_index_contextual.storage.publish import rollback
from llama_index_contextual.storage.receipts import ProjectCost
from llama_index_contextual.storage.verify import VerifyReport, repair_project, verify_project

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

    from llama_index_contextual.answering.batch import QA
    from llama_index_contextual.evaluation.answers import AnswerSweep
    from llama_index_contextual.evaluation.compare import Comparison
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.run import Questions
    from llama_index_contextual.evaluation.sweep import Sweep
    from llama_index_contextual.evaluation.workspace import Origin


class Project(ProjectWriting, ProjectReading):
    """One knowledge base: its documents, contexts and indexes, in its own directory.

    Made by `ProjectManager`. What builds its versions is in `ProjectWriting`, what asks it in `ProjectReading`, its
    upkeep, which needs no model, here.
    """

    def remove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Publish a version without some documents.

        Earlier versions on the disk still hold them, and the ledger what was paid for them, unless they are forgotten.

        The other documents stay as they stand: no model is asked, and settings that wait for a `rebuild` go on waiting.

        Args:
            doc_ids: Ids of the documents; without any, nothing is published.
            forget: Also do what `forget` does.

        Raises:
            InputError: The live version does not have one of them.
            ProjectLockedError: Another process is writing to the project.
        """
        wanted = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
        with write_lock(self.directory), contextlib.ExitStack() as stack:
            before = self._open_live()
            if before is not None:
                stack.callback(before.close)
            report = remove_documents(wanted, project_dir=self.directory, config=self.config, before=before)
        if forget:
            self.forget()
        return report

    async def aremove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Do as `remove` does, without blocking the event loop; whoever is cancelled meanwhile waits for its end."""
        return await to_its_end(partial(self.remove, doc_ids, forget=forget))

    def forget(self, *, dry_run: bool = False) -> Forgotten:
        """Remove from the disk, for good, what the live version does not hold.

        These are all other versions, so that no `rollback` is possible, and every context and embedding in the ledger
        that no chunk of the live version uses. Batches under way are given up, since their replies would bring text
        back: let the `ingest` that sent them finish first if their replies are wanted. What a provider keeps of its
        requests is out of reach. Interrupted, it can be run again.

        Args:
            dry_run: Remove nothing, and return what would be removed.

        Raises:
            NoVersionError: Nothing has been ingested yet: `delete` the project to remove its ledger.
            CorruptVersionError: The live version is damaged; nothing is removed then.
            ProjectLockedError: Another process is writing to the project, or comparing variants of it.
        """
        with write_lock(self.directory):
            live = self._open_live()
            if live is None:
                raise NoVersionError(
                    f"Project {self.name!r} has no version yet: delete the project to remove its ledger.",
                    name=self.name,
                )
            with contextlib.closing(live):
                return forget(self.directory, live, dry_run=dry_run)

    def rollback(self, to: str | None = None) -> str:
        """Make an earlier version the live one, and return its name; the later ones stay on disk.

        Args:
            to: Name of the version; None takes the one before the live one.

        Raises:
            InputError: There is no such version.
        """
        with write_lock(self.directory):
            return rollback(self.directory, to)

    def update_config(self, **changes: Any) -> list[str]:
        """Change settings, and return those that have no effect before the next `rebuild` or `ingest`.

        Settings that an earlier call has changed are among them for as long as the live version was built without
        them. What only concerns retrieval (mode, top_k, weights, ...) has an effect at the next query.

        Raises:
            ConfigurationError: A setting is unknown or cannot have that value; nothing is changed then.
        """
        with write_lock(self.directory):
            # Another process may have changed them since they were read.
            config = read_config(self.directory).changed(**changes)
            write_config(self.directory, config)
            pending = config.rebuild_fields(self._built_with() or self.config)
            self.config = config
            self.__dict__.pop("embed_model", None)
        return pending

    def _built_with(self) -> ProjectConfig | None:
        """Return the settings that the live version was built with; None where there is none that can be read."""
        try:
            name = current_name(self.directory)
            if name is None:
                return None
            return ProjectConfig.recorded(read_manifest(version_directory(self.directory, name)).config)
        except (CorruptVersionError, FormatError):
            return None

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first; one that is damaged says so, and `verify` what mends it.

        Raises:
            CorruptVersionError: CURRENT is damaged; the message names the versions.
        """
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

    def cost(self) -> ProjectCost:
        """Return what the project has cost so far, in all and by run: contexts and embeddings, not questions.

        A run that was killed, and calls that timed out, count with the most that they can have cost.
        """
        return project_cost(self.directory)

    def import_contexts(self, path: str | Path) -> int:
        """Add the contexts of a file that `export_contexts` wrote to the ledger, and return their number."""
        with write_lock(self.directory), project_ledger(self.directory) as ledger:
            return import_contexts(ledger, Path(path))

    def export_contexts(self, path: str | Path) -> int:
        """Write the contexts that were paid for as JSON lines, and return their number."""
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)) as ledger:
            return export_contexts(ledger, Path(path))

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
            **options: Of `evaluation.sweep.sweep_variants`: chunk_sizes, contexts, modes, top_ks, sample, max_cost.

        Raises:
            InputError: There is nothing to try, or the evidence cannot be compared over chunk sizes.
        """
        from llama_index_contextual.evaluation.sweep import sweep_variants

        return sweep_variants(self._origin(), questions, **options)

    def sweep_answers(self, questions: Sequence[QA], *, llm: LLM | None = None, **options: Any) -> AnswerSweep:
        """Answer questions with several chunk sizes, kinds of context, modes and numbers of results.

        Args:
            questions: Questions with their right answers.
            llm: Answers; None takes the project's.
            **options: Of `evaluation.answers.sweep_answers`: chunk_sizes, contexts, modes, top_ks, max_cost, …

        Raises:
            InputError: There is nothing to try.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        from llama_index_contextual.evaluation.answers import sweep_answers

        return sweep_answers(self._origin(), questions, llm or self._llm or self._load_answering_llm(), **options)

    def _origin(self) -> Origin:
        from llama_index_contextual.evaluation.workspace import Origin

        return Origin(
            directory=self.directory,
            config=self.config,
            live=self._live,
            llm=self._llm,
            model_id=self._model_id,
            load_embed_model=lambda: self.embed_model,
        )

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"
