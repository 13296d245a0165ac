"""Whatever writes is interrupted at each call: the old or the new state is there, and the next command continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index import files
from tests.integration.backends.site import FILES, Backend, Site, answers, documents, marks
from tests.slow.backends.backends import BACKENDS
from tests.slow.faults.system import OPERATIONS, Crash


@pytest.fixture(params=(FILES, *BACKENDS), ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """An engine, or files."""
    row: Backend = request.param
    if reason := row.missing():
        pytest.skip(reason)
    with row.environment(tmp_path):
        yield row


class Interruption:
    """Ends the process, as it seems, at a call of a method that writes; nothing can be written afterwards.

    Args:
        at: Number of the call, from 0; None only counts.
    """

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.calls: list[str] = []
        self._inside = threading.local()

    @property
    def struck(self) -> bool:
        """Whether the call was reached."""
        return self.at is not None and len(self.calls) > self.at

    @contextmanager
    def of(self, backend: Backend) -> Iterator[Interruption]:
        """Interrupt what a backend writes within the block."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in [*((files.System, name) for name in OPERATIONS), *backend.writes()]:
                patch.setattr(owner, name, self._counted(f"{owner.__name__}.{name}", getattr(owner, name)))
            yield self

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def method(*arguments: Any, **options: Any) -> Any:
            depth = getattr(self._inside, "depth", 0)
            if not depth:  # a method that is called by another one is part of it
                if self.struck:
                    raise Crash
                self.calls.append(name)
                if self.struck:
                    raise Crash
            self._inside.depth = depth + 1
            try:
                return real(*arguments, **options)
            finally:
                self._inside.depth = depth

        return method


def step(site: Site) -> int:
    """Return how many calls are left out between two that are interrupted: engines are slow."""
    return 2 if site.backend is FILES else 7


def interrupted(site: Site, at: int, run: Callable[[], object]) -> bool:
    """Do something that ends at a call that writes, and return whether it was reached."""
    with Interruption(at).of(site.backend) as interruption:
        try:
            run()
        except (Crash, ContextualError, OSError):
            assert interruption.struck
    return interruption.struck


def test_a_publish_that_is_interrupted_at_any_step_leaves_the_old_or_the_new_version(site: Site) -> None:
    site.create(keep_versions=2).ingest(documents(1))
    mark, at, reached = 1, 0, True
    while reached:
        mark += 1
        reached = interrupted(site, at, lambda: site.load().ingest(documents(mark)))  # noqa: B023 - called at once
        project = site.load()
        assert marks(project.retrieve("report", top_k=100)) in ({f"mark{mark - 1}"}, {f"mark{mark}"}), at
        assert project.verify().sound, at
        project.ingest(documents(mark))
        assert marks(project.retrieve("report", top_k=100)) == {f"mark{mark}"}, at
        assert len(project.documents()) == len(documents())
        assert project.verify().problems == [], at
        at += step(site)
    assert at > 10


def test_a_removal_a_rollback_and_the_next_ingest_can_be_interrupted(site: Site) -> None:
    site.create(keep_versions=2).ingest(documents(1))
    gone = documents()[4].id_
    mark, at, reached = 1, 0, True
    while reached:
        site.load().ingest(documents(mark + 1))
        whole = answers(site.load())

        reached = interrupted(site, at, lambda: site.load().remove(gone))
        project = site.load()
        assert project.verify().sound, at
        if gone in {record.doc_id for record in project.documents()}:
            assert answers(project) == whole, at
            project.remove(gone)
        assert gone not in {hit.source.doc_id for hit in project.retrieve("report", top_k=100)}

        reached = interrupted(site, at, lambda: site.load().rollback()) or reached
        project = site.load()
        assert project.verify().sound, at
        if gone not in {record.doc_id for record in project.documents()}:
            project.rollback()
        assert answers(project) == whole, at

        reached = interrupted(site, at, lambda: site.load().ingest(documents(mark + 2))) or reached  # noqa: B023
        project = site.load()
        assert marks(project.retrieve("report", top_k=100)) in ({f"mark{mark + 1}"}, {f"mark{mark + 2}"}), at
        project.ingest(documents(mark + 2))
        assert marks(project.retrieve("report", top_k=100)) == {f"mark{mark + 2}"}, at
        assert project.verify().problems == [], at
        mark, at = mark + 2, at + step(site)
