"""File operations of SQLite, one at a time: recorded, or made to fail.

A virtual file system of SQLite's own kind (https://www.sqlite.org/vfs.html) that hands everything on to the system's,
and counts creating, writing, truncating, syncing and deleting. It is reached by ctypes in the library that Python's
`sqlite3` has loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import sys
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["create", "write", "truncate", "sync", "delete"]

IOERR_WRITE, IOERR_FSYNC, IOERR_TRUNCATE, IOERR_DELETE, IOERR_LOCK = 778, 1034, 1546, 2570, 3850
FULL, CANTOPEN = 13, 14
_ERRORS: dict[str, dict[str, int]] = {
    "EIO": {"create": CANTOPEN, "write": IOERR_WRITE, "truncate": IOERR_TRUNCATE, "sync": IOERR_FSYNC}
    | {"delete": IOERR_DELETE},
    "ENOSPC": {"create": FULL, "write": FULL, "truncate": FULL, "sync": FULL, "delete": FULL},
    "EACCES": {"create": CANTOPEN, "write": IOERR_WRITE, "truncate": IOERR_TRUNCATE, "sync": IOERR_FSYNC}
    | {"delete": IOERR_DELETE},
}
_ERRORS["short"] = _ERRORS["EIO"]
FAULTS = tuple(_ERRORS)

_CREATE, _JOURNAL = 0x4, 0x800

_IO = ("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock")
_IO_REST = ("xFileControl", "xSectorSize", "xDeviceCharacteristics", "xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap")
_VFS = ("xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness")
_VFS_REST = ("xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall")


class _Methods(Structure):
    _fields_ = (
        ("iVersion", c_int),
        *((name, c_void_p) for name in (*_IO, *_IO_REST, "xFetch", "xUnfetch")),
    )


class _File(Structure):
    _fields_ = (("pMethods", c_void_p),)


class _Vfs(Structure):
    _fields_ = (
        *(("iVersion", c_int), ("szOsFile", c_int), ("mxPathname", c_int), ("pNext", c_void_p), ("zName", c_char_p)),
        ("pAppData", c_void_p),
        *((name, c_void_p) for name in (*_VFS, *_VFS_REST, "xNextSystemCall")),
    )


_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = _LOCK = CFUNCTYPE(c_int, c_void_p, c_int)


@dataclass(frozen=True)
class Event:
    """One operation.

    Attributes:
        kind: What was done.
        name: Name of the file.
        at: Offset of a write, size of a truncation.
        data: What was written.
        directory: Whether a sync or deletion also syncs the directory.
    """

    kind: Kind
    name: str
    at: int = 0
    data: bytes = b""
    directory: bool = False


@dataclass
class SQLiteFiles:
    """Records what SQLite does, and lets one operation fail.

    Attributes:
        fail_at: Number of the operation that fails; None: none.
        fault: How: one of `FAULTS`.
        refuses_locks: Whether no file can be locked.
        events: What was done, the failed operation included.
    """

    fail_at: int | None = None
    fault: str = "EIO"
    refuses_locks: bool = False
    events: list[Event] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def _failed(self, event: Event) -> int:
        self.events.append(event)
        return _ERRORS[self.fault][event.kind] if len(self.events) - 1 == self.fail_at else 0

    def install(self, library: ctypes.CDLL) -> _Vfs:
        """Make this the file system of connections that are opened from now on."""
        result = library.sqlite3_vfs_find(None)
        real = _Vfs.from_address(result)
        vfs = _Vfs.from_buffer_copy(real)
        vfs.zName, vfs.pNext = b"recording", None
        real_open, real_delete = _OPEN(real.xOpen), _DELETE(real.xDelete)

        def delete(_vfs: int, name: bytes, sync: int) -> int:
            event = Event("delete", os.path.basename(os.fsdecode(name)), directory=bool(sync))
            return self._failed(event) or int(real_delete(result, name, sync))

        def opened(_vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
            path = None if name is None else os.fsdecode(cast(name, c_char_p).value or b"")
            new = path is not None and flags & _CREATE and not os.path.exists(path)
            if new and path is not None and (code := self._failed(Event("create", os.path.basename(path)))):
                _File.from_address(file).pMethods = None
                return code
            code = int(real_open(result, name, file, flags, out))
            if code == 0 and path is not None:
                self._wrap(file, os.path.basename(path), journal=bool(flags & _JOURNAL))
            return code

        functions = _OPEN(opened), _DELETE(delete)
        vfs.xOpen, vfs.xDelete = (cast(function, c_void_p).value for function in functions)
        self._kept += [*functions, vfs]
        library.sqlite3_vfs_register(ctypes.byref(vfs), 1)
        return vfs

    def _wrap(self, file: int, name: str, *, journal: bool) -> None:
        opened = _File.from_address(file)
        real = _Methods.from_address(opened.pMethods)
        methods = _Methods.from_buffer_copy(real)
        real_write, real_truncate, real_sync = _WRITE(real.xWrite), _TRUNCATE(real.xTruncate), _SYNC(real.xSync)
        unsynced = [journal]

        def write(handle: int, data: int, size: int, at: int) -> int:
            content = ctypes.string_at(data, size)
            if code := self._failed(Event("write", name, at, content)):
                if self.fault == "short":
                    real_write(handle, data, size // 2, at)
                return code
            return int(real_write(handle, data, size, at))

        def truncate(handle: int, size: int) -> int:
            return self._failed(Event("truncate", name, size)) or int(real_truncate(handle, size))

        def sync(handle: int, flags: int) -> int:
            # SQLite syncs the directory of a new journal together with the journal's first sync.
            event = Event("sync", name, directory=unsynced[0])
            unsynced[0] = False
            return self._failed(event) or int(real_sync(handle, flags))

        functions = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        pointers = (cast(function, c_void_p).value for function in functions)
        methods.xWrite, methods.xTruncate, methods.xSync = pointers
        if self.refuses_locks:
            functions = (*functions, _LOCK(lambda _handle, _level: IOERR_LOCK))
            methods.xLock = cast(functions[-1], c_void_p).value
        opened.pMethods = ctypes.addressof(methods)
        self._kept += [*functions, methods]


def library() -> ctypes.CDLL | None:
    """Return the SQLite that Python uses, or None where it cannot be reached."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists() or sqlite3.sqlite_version_info < (3, 8):
        return None
    results = {line.split()[-1] for line in maps.read_text().splitlines() if "libsqlite3" in line}
    if len(results) != 1:
        return None
    loaded = ctypes.CDLL(results.pop())
    loaded.sqlite3_vfs_find.restype, loaded.sqlite3_vfs_find.argtypes = c_void_p, [c_char_p]
    loaded.sqlite3_vfs_register.argtypes = [POINTER(_Vfs), c_int]
    loaded.sqlite3_vfs_unregister.argtypes = [POINTER(_Vfs)]
    return loaded


@contextlib.contextmanager
def recording(system: SQLiteFiles) -> Iterator[SQLiteFiles]:
    """Let SQLite work through `system`; connections must be closed before the end."""
    loaded = library()
    if loaded is None:
        raise RuntimeError("the SQLite library of this Python cannot be reached")
    vfs = system.install(loaded)
    try:
        yield system
    finally:
        loaded.sqlite3_vfs_unregister(ctypes.byref(vfs))
