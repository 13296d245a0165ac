"""The memory of a process."""

from __future__ import annotations


def peak_memory() -> float:
    """Return the largest resident memory of this process so far, in MiB.

    `getrusage` would not do: its `ru_maxrss` begins with the peak of the process that started this one.
    """
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
