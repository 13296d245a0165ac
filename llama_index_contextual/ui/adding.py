"""The view that adds documents: upload, price, progress by file, reasons for skipped files, removal and undo.

Uploaded files are moved to the inbox of the project when they are complete, and one ingestion at a time makes the
documents follow the inbox. It can be interrupted at any moment: the next one continues. If an LLM writes the contexts,
files wait outside the inbox until their price has been confirmed.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import ContextualError, InputError, ProjectLockedError
from llama_index_contextual.index.inbox import Change, Inbox
from llama_index_contextual.ingestion.estimate import CostEstimate
from llama_index_contextual.ingestion.plan import FOR_LATER
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress, read_skipped
from llama_index_contextual.money.price import money
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.files import SUFFIXES, ReadLimits, SkippedFile, printable_path
from llama_index_contextual.ui import uploads
from llama_index_contextual.ui.background import BackgroundIngest
from llama_index_contextual.ui.uploads import Received, UploadLimits
from llama_index_contextual.ui.users import RefusedError, User
from llama_index_contextual.ui.views import Links, page, problem_of, project_of, with_problems, without_signs

NICENESS = 10
"""Niceness of the processes that parse added files, so that searches come first."""

LOCKED_SECONDS = 1.0
"""Time between two attempts to write to a project to which another program is writing."""

MAX_REFUSED = 100
"""Number of refused files that are listed for each user."""

FILES_PER_PAGE = 200
CHANGES_SHOWN = 10
_MAX_FORM = 1_000_000


def routes() -> list[Route]:
    """Return the routes for this view."""
    return [
        Route("/p/{project}/add", with_problems(show), methods=["GET"]),
        Route("/p/{project}/add", upload, methods=["POST"]),
        Route("/p/{project}/add/change", change, methods=["POST"]),
    ]


@dataclass(frozen=True, kw_only=True)
class FileState:
    """An added file as displayed.

    Attributes:
        path: Path in the inbox.
        name: Path as the user sent it.
        state: "read" if it is a document, "skipped" if it cannot be read, "reading", or "queued".
        reason: Reason why it was skipped, with the remedy, or "".
        doc_id: Id of its document, or None.
    """

    path: str
    name: str
    state: Literal["read", "skipped", "reading", "queued"]
    reason: str = ""
    doc_id: str | None = None


class Adding:
    """The added files of a project, and the ingestion that makes its documents follow them.

    Only one ingestion runs at a time. If files arrive in the meantime, it is followed by another one.

    Args:
        project: The whole project.
        folder: Folder for the files instead of the inbox of the project. Its documents keep their metadata.
        ingest: Ingestion of the folder that is already running, or None.

    Attributes:
        project: As above.
        inbox: The files.
        ingest: The last ingestion, or None.
        limits: Limits for uploads.
        is_locked: Whether the ingestion waits for another program that is writing to the project.
    """

    def __init__(self, project: Project, *, folder: Path | None = None, ingest: BackgroundIngest | None = None) -> None:
        self.project, self.inbox, self.ingest = project, Inbox(project.directory, folder), ingest
        self.limits = UploadLimits()
        self.is_locked = False
        self._has_facts = folder is None
        self._first = ingest
        self._lock = Lock()
        self._requested = 0
        self._unreadable: Sequence[SkippedFile] = ()
        self._is_working = self._is_stopped = False
        self._refused: dict[str, list[tuple[str, str]]] = {}
        self._estimates: dict[str, tuple[Any, CostEstimate | str | None]] = {}
        self.inbox.clean()

    @property
    def needs_confirmation(self) -> bool:
        """Whether the price of the contexts must be confirmed before files are ingested."""
        return self.project.config.context == "llm"

    # ---- ingestion ----

    def resume(self) -> None:
        """Continue an ingestion that was interrupted before all files of the inbox had become documents."""
        if self.ingest is None and self.inbox.folder.is_dir():
            self.start()

    def start(self) -> None:
        """Make the documents follow the inbox, now or after the ingestion that is running."""
        with self._lock:
            self._requested += 1
            if self._is_working or self._is_stopped:
                return
            self._is_working = True
        self.ingest = BackgroundIngest(self.inbox.folder.name, self._work, describe=without_signs)
        self.ingest.start()

    def retry(self) -> None:
        """Make the documents follow the inbox, and also read the files that could not be read."""
        self._unreadable = ()
        self.start()

    def stop(self) -> bool:
        """Stop the ingestion, and return whether it was interrupted; `resume` continues it."""
        self._is_stopped = True
        return self.ingest is not None and self.ingest is not self._first and self.ingest.stop()

    async def _work(self, show: ReportProgress) -> IngestReport:
        try:
            while self._first is not None and self._first.is_running:
                await asyncio.sleep(LOCKED_SECONDS / 4)
            while True:
                seen = self._requested
                report = await self._follow(show)
                self._unreadable = [file for file in report.skipped if file.reason not in FOR_LATER]
                is_complete = len(self._unreadable) == len(report.skipped)
                with self._lock:
                    if is_complete and seen == self._requested:
                        self._is_working = False
                        return report
                if not is_complete:  # large files, and files that are still being written by another program
                    await asyncio.sleep(LOCKED_SECONDS / 4)
        except BaseException:  # after a return, another ingestion may have been started already
            self._is_working = self.is_locked = False
            raise

    async def _follow(self, show: ReportProgress) -> IngestReport:
        """Add the new files of the inbox and remove the documents of the removed ones."""
        unreadable = self._unreadable
        project, removed = self.project, await asyncio.to_thread(self.inbox.removed_paths)
        gone = [record.doc_id for record in await project.adocuments() if record.path in removed]
        options: dict[str, Any] = {"limits": ReadLimits(niceness=NICENESS)}
        if self._has_facts:
            facts = await asyncio.to_thread(self.inbox.facts)
            options["file_metadata"] = lambda path: facts.get(os.path.realpath(path), {})
        max_cost = None
        if self.needs_confirmation:  # what is in the inbox has been confirmed, and must not cost more
            max_cost = (await project.aestimate([self.inbox.folder], **options)).max_cost
        while True:
            try:
                return await project.async_folders(
                    [self.inbox.folder],
                    remove=gone,
                    allow_empty=True,
                    max_cost=max_cost,
                    progress=show,
                    # Versions of added files do not displace those of the owner, and small files are read first.
                    watching=True,
                    unreadable=unreadable,
                    **options,
                )
            except ProjectLockedError:
                self.is_locked = True
            await asyncio.sleep(LOCKED_SECONDS)
            self.is_locked = False

    # ---- what users do ----

    async def receive(self, request: Request, user: User, *, confirmed: bool) -> tuple[list[str], Received]:
        """Receive the files of a form, and return the paths of the accepted ones.

        Args:
            request: The request with the form.
            user: The user.
            confirmed: Whether the files go to the inbox at once; otherwise, they wait for `confirm`.

        Raises:
            RefusedError: The request cannot be received.
            NoSpaceError: The disk is full.
        """
        with self.limits.reserve(request, self.inbox, user):
            received = await uploads.receive(request, self.inbox, waits=None if confirmed else user.name)
        if confirmed:
            paths = await asyncio.to_thread(self.inbox.add, received.uploads, user.name, user.filters)
        else:
            paths = [await asyncio.to_thread(self.inbox.hold, upload, user.name) for upload in received.uploads]
        self.limits.count(user, len(paths))
        if confirmed and paths:
            self.start()
        return paths, received

    def confirm(self, user: User, stamp: str) -> None:
        """Move the waiting files of a user to the inbox and start to ingest them.

        Args:
            user: The user.
            stamp: Result of `Inbox.stamp` when the price was calculated.

        Raises:
            InputError: The waiting files have changed since then.
        """
        if self.inbox.confirm(user.name, user.filters, stamp):
            self.start()

    def remove(self, paths: Sequence[str], user: User) -> None:
        """Remove files of a user, and their documents."""
        self.inbox.remove(paths, user.name)
        self.start()

    def undo(self, change_id: str, user: User) -> None:
        """Reverse a change of a user."""
        self.inbox.undo(change_id, user.name)
        self.start()

    def note_refused(self, user: User, refused: Sequence[tuple[str, str]]) -> None:
        """Remember files that were refused, for the next page of the user."""
        self._refused[user.name] = [*self._refused.get(user.name, ()), *refused][-MAX_REFUSED:]

    def forget_refused(self, user: User) -> None:
        """Forget the files that were refused."""
        self._refused.pop(user.name, None)

    # ---- what the view shows ----

    def refused(self, user: User) -> Sequence[tuple[str, str]]:
        """Return the files of a user that were refused, with the reasons."""
        return self._refused.get(user.name, ())

    def estimate(self, user: User) -> CostEstimate | str | None:
        """Return the estimate for the waiting files of a user, or an error message; None while it is calculated."""
        stamp = self.inbox.stamp(user.name)
        with self._lock:
            known = self._estimates.get(user.name)
            if known is not None and known[0] == stamp:
                return known[1]
            self._estimates[user.name] = (stamp, None)
        threading.Thread(target=self._calculate, args=(user, stamp), name="estimate", daemon=True).start()
        return None

    def _calculate(self, user: User, stamp: Any) -> None:
        result: CostEstimate | str = "This is a bug: the terminal shows the details."
        try:
            result = self.calculate(user)
        except (ContextualError, OSError, sqlite3.Error) as error:
            result = without_signs(error)
        finally:
            with self._lock:
                self._estimates[user.name] = (stamp, result)

    def calculate(self, user: User) -> CostEstimate:
        """Return the estimate for the waiting files of a user."""
        facts = dict(user.filters)
        return self.project.estimate(
            [self.inbox.waiting_folder(user.name)],
            file_metadata=lambda path: facts,
            limits=ReadLimits(niceness=NICENESS),
        )

    def files(self, user: User) -> list[FileState]:
        """Return the states of the files that a user has added and not removed, latest first."""
        records = {record.path: record for record in self.project.documents() if record.path}
        ingest = self.ingest  # another request may start the next ingestion
        report, progress = (ingest.report, ingest.progress) if ingest else (None, None)
        skipped = {file.path: file.reason for file in read_skipped(self.project.directory)}
        skipped |= {file.path: file.reason for file in (report.skipped if report else ())}
        current = progress.document.rpartition("/")[2] if progress else ""
        is_running = ingest is not None and ingest.is_running
        states = []
        for added in reversed([one for one in self.inbox.added(user.name) if one.is_present]):
            path = str(self.inbox.folder / added.path)
            name = added.path.removeprefix(f"{user.name}/") if user.name else added.path
            state = partial(FileState, path=added.path, name=name)
            if (record := records.get(path)) is not None:
                states.append(state(state="read", doc_id=record.doc_id))
            elif (reason := skipped.get(printable_path(path))) is not None and not is_running:
                # A reason may name a document that the user may not see.
                hides = bool(user.filters) and "same content" in reason
                shown = "has the same content as another document, which is read once" if hides else reason
                states.append(state(state="skipped", reason=shown.replace(f"{self.inbox.folder}/", "").rstrip(".")))
            else:
                is_current = is_running and bool(current) and name.rpartition("/")[2] == current
                states.append(state(state="reading" if is_current else "queued"))
        return states

    def undoable(self, user: User) -> list[Change]:
        """Return the last changes of a user that can be undone, latest first."""
        last = {added.change.id: added.change for added in self.inbox.added(user.name)}
        return list(reversed(last.values()))[:CHANGES_SHOWN]


# ---- views -----------------------------------------------------------------------------------------------------------


def adding_of(request: Request, project: str) -> Adding:
    """Return the added files of a project; an HTTP error with status 403 is raised if changes are not allowed."""
    adding: Mapping[str, Adding] = request.app.state.adding
    if project not in adding:
        raise HTTPException(403, "Documents cannot be added here: the person who runs this server has not allowed it.")
    return adding[project]


def show(request: Request, *, problem: str = "", status: int = 200) -> Response:
    """Show the form, and the files that the user has added."""
    project, user = project_of(request), request.scope["user"]
    adding = adding_of(request, project.name)
    waiting, stamp = adding.inbox.waiting(user.name), adding.inbox.stamp(user.name)
    estimate = adding.estimate(user) if waiting else None
    states = adding.files(user)
    ingest = adding.ingest
    return page(
        request,
        "add.html",
        status_code=status,
        user=user,
        problem=problem,
        waiting=waiting,
        stamp=stamp,
        waiting_bytes=size_words(sum(size for _, size in waiting)),
        needs_confirmation=adding.needs_confirmation,
        estimate=estimate if isinstance(estimate, CostEstimate) else None,
        estimate_error=estimate if isinstance(estimate, str) else "",
        states=states[:FILES_PER_PAGE],
        total=len(states),
        counts={name: sum(one.state == name for one in states) for name in ("read", "skipped", "reading", "queued")},
        refused=adding.refused(user),
        running=ingest if ingest is not None and ingest.is_running else None,
        is_locked=adding.is_locked,
        error=ingest.error if ingest is not None and not ingest.is_running else "",
        changes=[(one, _words_of(one, user)) for one in adding.undoable(user)],
        suffixes=SUFFIXES,
        max_file=uploads.MAX_FILE,
        money=money,
    )


def _words_of(change: Change, user: User) -> str:
    names = [path.removeprefix(f"{user.name}/") if user.name else path for path in change.files]
    verb = "Added" if change.action == "add" else "Removed"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{verb} {names[0]}{more}"


def size_words(size: int) -> str:
    """Return a number of bytes in words.

    Example:
        >>> size_words(512), size_words(3_210_000)
        ('1 kB', '3.2 MB')
    """
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3)):,} kB"


async def upload(request: Request) -> Response:
    """Receive files: return JSON to the script of the page, or show the page to a plain form."""
    project, user = project_of(request), request.scope["user"]
    wants_json = "application/json" in request.headers.get("accept", "")
    adding = adding_of(request, project.name)
    try:
        paths, received = await adding.receive(request, user, confirmed=not adding.needs_confirmation)
    except ContextualError as error:
        problem = problem_of(error, project)
        if wants_json:
            response: Response = JSONResponse({"problem": problem.text}, problem.status)
        else:
            response = await asyncio.to_thread(partial(show, request, problem=problem.text, status=problem.status))
        if isinstance(error, RefusedError) and error.retry_after is not None:
            response.headers["Retry-After"] = str(int(error.retry_after) + 1)
        response.headers["Connection"] = "close"  # the rest of the body is not read
        return response
    adding.note_refused(user, received.refused)
    if wants_json:
        return JSONResponse({"added": len(paths), "refused": received.refused})
    return RedirectResponse(Links(project.name).add(), 303)


async def change(request: Request) -> Response:
    """Confirm or discard waiting files, remove files, undo a change, or try again; then show the page."""
    project, user = project_of(request), request.scope["user"]
    adding = adding_of(request, project.name)

    def confirm(stamp: str) -> None:
        estimate = adding.estimate(user)
        if not isinstance(estimate, CostEstimate):
            raise InputError("The price is not known yet: wait until it has been calculated.")
        if stamp == adding.inbox.stamp(user.name):
            request.app.state.limits.charge(user, estimate.dollars or 0.0)
        adding.confirm(user, stamp)

    actions: Mapping[str, Callable[[str], object]] = {
        "confirm": confirm,
        "discard": lambda _: adding.inbox.discard_waiting(user.name),
        "remove": lambda path: adding.remove([path], user),
        "undo": lambda name: adding.undo(name, user),
        "retry": lambda _: adding.retry(),
        "dismiss": lambda _: adding.forget_refused(user),
    }
    try:
        fields = await uploads.form_fields(request, _MAX_FORM)
        name = next((name for name in actions if name in fields), None)
        if name is None:
            raise InputError("The form has no action: use a button of the page.")
        await asyncio.to_thread(actions[name], fields[name][0])
    except ContextualError as error:
        problem = problem_of(error, project)
        return await asyncio.to_thread(partial(show, request, problem=problem.text, status=problem.status))
    return RedirectResponse(Links(project.name).add(), 303)
