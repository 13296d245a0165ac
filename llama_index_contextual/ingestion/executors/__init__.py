"""Where the documents of a run are read, cut into chunks and embedded: in this process, or by the workers of Ray.

Everything else of a run stays in one process: the plan, the ledger, the account with its limit, the contextualizer, all
calls to providers, and the version that is built. A further executor is a class with the methods of `Executor`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.plan import FileReader, Intake, RunOptions, make_reader
from llama_index_contextual.ingestion.stages import Stages
from llama_index_contextual.readers.ocr import PageStore


class Executor(Protocol):
    """Place where documents are read, cut into chunks and embedded."""

    @property
    def batches_ahead(self) -> int:
        """Minimum number of batches of chunks to start ahead of the current one."""

    def make_reader(
        self,
        options: RunOptions,
        config: ProjectConfig,
        intake: Intake,
        *,
        page_store: PageStore | None = None,
        on_file: Callable[[str], None] | None = None,
        on_page: Callable[[int, int], None] | None = None,
    ) -> AbstractContextManager[FileReader]:
        """Return the reader for the files of a run; see `plan.make_reader`."""

    def place(self, stages: Stages) -> Stages:
        """Return stages that embed where this executor does."""


class LocalExecutor:
    """Executor that does everything in this process; all files but text are parsed in child processes."""

    batches_ahead = 0
    make_reader = staticmethod(make_reader)

    def place(self, stages: Stages) -> Stages:
        """Return the stages unchanged."""
        return stages
