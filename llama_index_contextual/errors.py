"""Every error that this package raises on purpose.

Each message says what is wrong and what to do. Each class carries the object concerned as an attribute.

    ContextualError
    ├── ConfigurationError            a setting is wrong, or two settings contradict each other
    │   └── ModelError                a model cannot be made or reached: no key, no package, no such name
    ├── InputError                    an argument of a call is wrong: an empty query, two documents with one id
    │   └── PathNotFoundError         a path that was given leads to no file
    ├── ProjectError                  a project or its files
    │   ├── ProjectNotFoundError      no project of that name in the root folder
    │   ├── ProjectExistsError        a project of that name is there already
    │   ├── NoVersionError            nothing has been ingested yet
    │   ├── ProjectLockedError        another process is writing to the project
    │   ├── FormatError               the files were written by a newer release
    │   ├── CorruptVersionError       a file of a version is damaged, missing or belongs elsewhere
    │   ├── LedgerError               the ledger cannot be opened, read or written: permissions, a full disk, …
    │   │   └── LedgerBusyError       another program holds the ledger
    │   └── ReadOnlyVersionError      something tried to change a published version
    ├── BudgetExceededError           the next call could cost more than `max_cost` allows
    ├── ReadError                     one file could not be read; the rest goes on
    └── ContextualizationError        the context of one or more chunks could not be written
"""

from __future__ import annotations

from llama_index_contextual._utils.redaction import scrub


class ContextualError(Exception):
    """The base of every error that this package raises on purpose; no message holds an API key in use."""

    def __init__(self, message: str = "") -> None:
        super().__init__(scrub(str(message)))


class ConfigurationError(ContextualError, ValueError):
    """A setting is wrong, or two settings contradict each other.

    Attributes:
        setting: Name of the setting concerned, if it is a single one.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class ModelError(ConfigurationError):
    """A model cannot be made or reached: no key, no package, no such name."""


class InputError(ContextualError, ValueError):
    """An argument of a call is wrong.

    Attributes:
        value: The argument.
    """

    def __init__(self, message: str, *, value: object = None) -> None:
        super().__init__(message)
        self.value = value


class PathNotFoundError(InputError):
    """A path that was given leads to no file, and nothing was changed; `value` is the list of such paths."""


class ProjectError(ContextualError):
    """A project or its files.

    Attributes:
        name: Name of the project, if known.
    """

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class ProjectNotFoundError(ProjectError):
    """No project of that name is in the root folder."""


class ProjectExistsError(ProjectError):
    """A project of that name is there already."""


class NoVersionError(ProjectError):
    """Nothing has been ingested into the project yet."""


class ProjectLockedError(ProjectError):
    """Another process is writing to the project."""


class FormatError(ProjectError):
    """The files were written by a newer release of this package."""


class CorruptVersionError(ProjectError):
    """A file of a version is damaged, missing or belongs elsewhere.

    Attributes:
        file: Name of the file, relative to the project's directory.
    """

    def __init__(self, message: str, *, name: str | None = None, file: str | None = None) -> None:
        super().__init__(message, name=name)
        self.file = file


class LedgerError(ProjectError):
    """The ledger cannot be opened, read or written, which says nothing about what it holds."""


class LedgerBusyError(LedgerError):
    """Another program holds the ledger."""


class ReadOnlyVersionError(ProjectError):
    """Something tried to change a published version."""


class BudgetExceededError(ContextualError):
    """The next call could cost more than `max_cost` allows; nothing was published, and what was paid for is kept.

    Attributes:
        spent: Dollars that the run has spent, the reserves of calls included whose price is not known: those that timed
            out or were cut off, and batches under way.
        max_cost: The limit.
    """

    def __init__(self, message: str, *, spent: float, max_cost: float) -> None:
        super().__init__(message)
        self.spent = spent
        self.max_cost = max_cost


class ReadError(ContextualError):
    """One file could not be read.

    Attributes:
        path: The file as it was named in the call.
        reason: Why, without the path.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ContextualizationError(ContextualError):
    """The context of one or more chunks could not be written.

    Attributes:
        node_ids: The chunks concerned.
    """

    def __init__(self, message: str, *, node_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.node_ids = node_ids
