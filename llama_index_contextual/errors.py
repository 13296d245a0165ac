"""The exceptions of this package.

Each message says what is wrong and what to do. The object that caused the error is available as an attribute of the
exception. If the advice refers to methods or arguments, the exception has a `Remedy` with different wording for the
command line.

    ContextualError
    ├── ConfigurationError            a setting is invalid, or two settings contradict each other
    │   └── ModelError                a model cannot be created or reached, for example because its key is missing
    ├── InputError                    an argument is invalid, such as an empty query
    │   ├── PathNotFoundError         no file exists at a given path
    │   └── LargeRemovalError         a sync would remove more than a tenth of the documents in a folder
    ├── ProjectError                  a problem with a project or its files
    │   ├── ProjectNotFoundError      no project with this name exists in the root folder
    │   ├── ProjectExistsError        a project with this name already exists
    │   ├── NoVersionError            nothing has been ingested yet
    │   ├── ProjectLockedError        another process is writing to the project
    │   ├── FormatError               the files were written by a newer release, or before the first release
    │   ├── CorruptVersionError       a file of a version is damaged, missing or from another version
    │   ├── LedgerError               the ledger cannot be opened, read or written, for example because a disk is full
    │   │   └── LedgerBusyError       another process has locked the ledger
    │   ├── NoSpaceError              the disk is full, or a quota or file size limit has been reached
    │   ├── OpenFilesError            this process or system has too many files open
    │   └── ReadOnlyVersionError      a published version cannot be changed
    ├── BackendError                  the vector store of a project cannot be reached, or rejects a request
    ├── BudgetExceededError           the next call could cost more than `max_cost` allows
    └── ReadError                     a file could not be read; other files are not affected
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_index_contextual._utils.redaction import scrub

_ENDS = (".", "!", "?")
_DOUBLED = re.compile(r"(?<=[\w)'\"`])([.,])\1(?=\s|$)")


@dataclass(frozen=True)
class Remedy:
    """Advice on how to resolve an error, with separate wording for Python and for the command line.

    Attributes:
        python: Advice for Python code, which is appended to the exception's message.
        command_line: Advice for the command line. `{project}` stands for the name of the project, followed by `--root`
            if the command was run with this option, and `{root}` for the option alone.
    """

    python: str
    command_line: str


class ContextualError(Exception):
    """Base class of the exceptions of this package; API keys are removed from messages.

    Attributes:
        problem: Description of the problem, without the advice in `remedy`.
        remedy: Advice for Python and for the command line if the two differ; otherwise, `problem` contains the advice.
    """

    def __init__(self, message: str = "", *, remedy: Remedy | None = None) -> None:
        # A message may end with a sentence of another error, which has its own full stop.
        self.problem = _DOUBLED.sub(r"\1", scrub(_without_surrogates(str(message))))
        self.remedy = remedy
        super().__init__(self.problem if remedy is None else with_advice(self.problem, scrub(remedy.python)))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, a copy is created from `args`, which differ from the arguments of a subclass.
        return _copy_of, (type(self), self.args, self.__dict__)


def _copy_of(kind: type[ContextualError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ContextualError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigurationError(ContextualError, ValueError):
    """A setting is invalid, or two settings contradict each other.

    Attributes:
        setting: Name of the setting, if the error concerns a single setting.
    """

    def __init__(self, message: str, *, setting: str | None = None, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.setting = setting


class ModelError(ConfigurationError):
    """A model cannot be created or reached, for example because its key or package is missing."""


class InputError(ContextualError, ValueError):
    """An argument is invalid.

    Attributes:
        value: The argument.
    """

    def __init__(self, message: str, *, value: object = None, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.value = value


class PathNotFoundError(InputError):
    """No file exists at one or more of the given paths; nothing was changed.

    `value` is the list of these paths.
    """


class LargeRemovalError(InputError):
    """A sync would remove more than a tenth of the documents in a folder; nothing was changed.

    Attributes:
        documents: Ids of the documents that would be removed.
    """

    def __init__(self, message: str, *, documents: Sequence[str] = (), remedy: Remedy | None = None) -> None:
        super().__init__(message, value=documents, remedy=remedy)
        self.documents = documents


class SettingWarning(UserWarning):
    """A setting, or a model assigned to LlamaIndex's Settings, has no effect; the message says why and what to do."""


class ProjectError(ContextualError):
    """A problem with a project or its files.

    Attributes:
        name: Name of the project, if known.
    """

    def __init__(self, message: str, *, name: str | None = None, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.name = name


class ProjectNotFoundError(ProjectError):
    """No project with this name exists in the root folder."""


class ProjectExistsError(ProjectError):
    """A project with this name already exists."""


class NoVersionError(ProjectError):
    """Nothing has been ingested into the project yet."""


class ProjectLockedError(ProjectError):
    """Another process is writing to the project."""


class FormatError(ProjectError):
    """The files were written by a newer release of this package, or before the first release."""


class CorruptVersionError(ProjectError):
    """A file of a version is damaged, missing or from another version.

    Attributes:
        file: Name of the file, relative to the project's directory.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        file: str | None = None,
        remedy: Remedy | None = None,
    ) -> None:
        super().__init__(message, name=name, remedy=remedy)
        self.file = file


class LedgerError(ProjectError):
    """The ledger cannot be opened, read or written, although its contents may be intact."""


class LedgerBusyError(LedgerError):
    """Another process has locked the ledger."""


class NoSpaceError(ProjectError, OSError):
    """A file cannot be written to, because the disk is full, or a quota or file size limit has been reached.

    Attributes:
        file: The file.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"{file} cannot be written: {reason}. Free space or raise the limit, then try again; the live version has"
            f" not changed, and paid results are kept."
        )
        self.file = file


class OpenFilesError(ProjectError, OSError):
    """No more files can be opened, because this process or the system has too many files open."""

    def __init__(self) -> None:
        super().__init__(
            "Too many files are open: raise the limit (`ulimit -n 1024`), or close files and connections, then try"
            " again; paid results are kept."
        )


class ReadOnlyVersionError(ProjectError):
    """A published version cannot be changed."""


class BackendError(ContextualError):
    """The vector store of a project cannot be reached, or rejects a request.

    Attributes:
        url: Address of the vector store.
    """

    def __init__(self, message: str, *, url: str | None = None, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.url = url


class BudgetExceededError(ContextualError):
    """The next call could cost more than `max_cost` allows; nothing was published, and paid results are kept.

    Attributes:
        spent: Dollars spent by the run, including amounts reserved for calls whose cost is unknown: calls that timed
            out or were interrupted, and pending batches.
        max_cost: The limit.
    """

    def __init__(self, message: str, *, spent: float, max_cost: float, remedy: Remedy | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.spent = spent
        self.max_cost = max_cost


class ReadError(ContextualError):
    """A file could not be read.

    Attributes:
        path: Path of the file, as it was passed.
        reason: The reason, without the path.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def _without_surrogates(message: str) -> str:
    """Escape lone surrogates, which cannot be printed; the name of a file may contain them."""
    return message.encode(errors="backslashreplace").decode()


def with_advice(problem: str, advice: str) -> str:
    """Combine a problem and the advice on it into a message.

    Example:
        >>> with_advice("The query is empty", "ask a question"), with_advice("It failed.", "try again")
        ('The query is empty: ask a question.', 'It failed. Try again.')
        >>> with_advice("Set the price", "or omit --max-cost")
        'Set the price, or omit --max-cost.'
    """
    if not advice:
        return end_sentence(problem)
    if problem.endswith(_ENDS):
        text = f"{problem} {advice[0].upper()}{advice[1:]}"
    else:
        separator = ", " if advice.startswith("or ") else "; " if advice.startswith("did you mean") else ": "
        text = f"{problem}{separator}{advice}"
    return end_sentence(text)


def end_sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends with a mark.

    Example:
        >>> end_sentence("The disk is full"), end_sentence("The disk is full.")
        ('The disk is full.', 'The disk is full.')
    """
    return text if text.endswith(_ENDS) else f"{text}."
