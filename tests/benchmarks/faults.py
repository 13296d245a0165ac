"""Damage projects in every known way, and print each violation: `python -m tests.benchmarks.faults`.

Runs all cases of which the tests in tests/slow/faults run a sample. `--minutes` is the time during which readers and a
writer work at the same time (0 omits this part), and `--only` selects parts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

from tests.slow.faults import commits as ledger_commits
from tests.slow.faults import test_corruption as corruption
from tests.slow.faults import test_operations as operations
from tests.slow.faults.bad_inputs import CASES, message_of
from tests.slow.faults.cases import SCENARIOS, Bench, Scenario, create, documents, ingest, load
from tests.slow.faults.load import BUSY, STOP, wait_for_readers

SHOWN = 10
Result = tuple[str, list[str]]


def faults(folder: Path, options: argparse.Namespace) -> Result:
    """Fail every operation in every way."""
    bench = Bench(folder)
    cases = list(operations.fault_cases(bench, _scenarios(options)))
    return _all(lambda case: operations.run_fault(bench, *case), cases, options)


def power(folder: Path, options: argparse.Namespace) -> Result:
    """Cut the power at every operation."""
    bench = Bench(folder)
    cases = list(operations.power_cases(bench, options.seeds, _scenarios(options)))
    return _all(lambda case: operations.run_power_loss(bench, *case)[0], cases, options)


def syncs(folder: Path, options: argparse.Namespace) -> Result:
    """Leave out one sync after the other: each one must be missed."""
    found = operations.needless_syncs(Bench(folder), options.seeds, _scenarios(options))
    lines = "".join(f"\n    {place}: missed after {cases or 'no'} cases" for place, cases in found.items())
    return f"{len(found)} places ask for a sync{lines}", [place for place, cases in found.items() if not cases]


def commits(folder: Path, options: argparse.Namespace) -> Result:
    """Fail every operation of SQLite in commits of the ledger, cut the power there, and do with fewer syncs."""
    for name in ("faults", "power"):
        (folder / name).mkdir()
    lived = ledger_commits.record(folder / "whole")
    found, numbers = [], {"faults": 0, "power cuts": 0}
    for at, fault, wrong in ledger_commits.faulty_commits(folder / "faults"):
        numbers["faults"] += 1
        found += [f"operation {at}, {fault}: {what}" for what in wrong]
    for at, seed, wrong in ledger_commits.power_cuts(folder / "power", lived, options.seeds):
        numbers["power cuts"] += 1
        found += [f"power cut after operation {at}, seed {seed}: {what}" for what in wrong]
    lines = ""
    for weaker in ledger_commits.SYNCHRONOUS:
        less = ledger_commits.record(folder / "less", weaker)
        cuts = ledger_commits.power_cuts(folder / weaker, less, options.seeds)
        missed = next((number for number, (_, _, wrong) in enumerate(cuts, start=1) if wrong), 0)
        lines += f"\n    synchronous = {weaker} instead of EXTRA: missed after {missed or 'no'} cases"
        found += [] if missed else [f"nothing is lost with synchronous = {weaker}"]
    return f"{len(lived.events)} operations, {numbers}{lines}", found


def ledger(folder: Path, options: argparse.Namespace) -> Result:
    """Kill commands in transactions of the ledger, flip its bits, and check and repair it where it cannot be had."""
    numbers = {"kills": options.kills, "flips": options.flips, "held": options.held}
    running = {}
    for name, number in numbers.items():
        (folder / name).mkdir()
        command = [sys.executable, "-m", "tests.slow.faults.ledger_faults", str(folder / name), name, str(number), "7"]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines, wrong = "", []
    for name, process in running.items():
        written = process.communicate()[0]
        if process.returncode:
            wrong.append(f"{name} ended with {process.returncode}")
            continue
        found = json.loads(written)
        wrong += found["wrong"]
        lines += f"\n    {name}: " + ", ".join(f"{count} {what}" for what, count in found["counts"].items())
    return f"{numbers}{lines}", wrong


def inputs(folder: Path, options: argparse.Namespace) -> Result:
    """Give bad inputs, and print the message that each one gets."""
    found, lines = [], ""
    for number, what in enumerate(CASES):
        disk = folder / str(number)
        disk.mkdir()
        try:
            lines += f"\n    {what}: {message_of(what, disk)}"
        except Exception as error:  # noqa: BLE001 - whatever is not an error of the package is a violation
            found.append(f"{what}: {type(error).__name__}: {error}")
    return f"{len(CASES)} bad inputs{lines}", found


def fuzz(folder: Path, options: argparse.Namespace) -> Result:
    """Run the tests of files, settings and names with thousands of examples each."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "tests/slow/faults/test_inputs.py",
        "-k",
        "not gets_a_sentence",
    ]
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "long"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return "2000 examples of each", [] if done.returncode == 0 else [done.stdout[-2000:]]


def damage(folder: Path, options: argparse.Namespace) -> Result:
    """Damage every file of a version in every way, and open it."""
    disk = _project(folder)
    cases, found = corruption.check_damage(disk, folder / "damaged", bits=options.bits, seed=3)
    return f"{cases} damaged files", found


def flips(folder: Path, options: argparse.Namespace) -> Result:
    """Flip every bit of project.json, CURRENT and manifest.json."""
    project_dir = _project(folder) / corruption.ROOT / corruption.NAME
    cases, found = corruption.check_flips(project_dir, step=1, bits=range(8))
    return f"{cases} flipped bits", found


def machine(folder: Path, options: argparse.Namespace) -> Result:
    """Run random sequences against a dictionary."""
    command = [sys.executable, "-m", "pytest", "-n0", "tests/slow/faults/test_state_machine.py"]
    environment = {**os.environ, "CONTEXTUAL_SEQUENCES": str(options.sequences)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return f"{options.sequences} sequences", [] if done.returncode == 0 else [done.stdout[-2000:]]


def readers(folder: Path, options: argparse.Namespace) -> Result:
    """Let 8 threads in 2 processes read while a writer publishes every 2 seconds and sometimes rolls back."""
    disk = _project(folder)
    command = [sys.executable, "-m", "tests.slow.faults.load", str(disk), "4"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    wait_for_readers(processes)
    time.sleep(min(20.0, options.minutes * 15))  # the quiet that the load is compared with
    (disk / BUSY).touch()
    project, published, end = load(disk), 0, time.monotonic() + options.minutes * 60
    while time.monotonic() < end:
        begin = time.monotonic()
        published += 1
        project.ingest(documents(2 + published))
        if published % 7 == 0:
            project.rollback()
        time.sleep(max(0.0, 2 - (time.monotonic() - begin)))
    (disk / STOP).touch()
    found = [json.loads(process.communicate()[0]) for process in processes]
    wrong = [f"{name}: {one[name]}" for one in found for name in ("errors", "mixed") if one[name]]
    for one in found:
        if one["p99_busy"] > 3 * one["p99_quiet"]:
            wrong.append(f"p99 grows {one['p99_busy'] / one['p99_quiet']:.1f} times")
        if one["memory_last"] > 1.1 * one["memory_first"] or one["files_last"] > one["files_first"] + 2:
            wrong.append("memory or open files grow")
    answers = sum(one["answers"] for one in found)
    lines = "".join(
        f"\n    p99 {one['p99_quiet'] * 1000:.1f} ms quiet, {one['p99_busy'] * 1000:.1f} ms busy;"
        f" memory {one['memory_first'] / 1e6:.0f} -> {one['memory_last'] / 1e6:.0f} MB;"
        f" open files {one['files_first']} -> {one['files_last']}, at most {one['files_most']}"
        for one in found
    )
    return f"{options.minutes} minutes, {published} versions, {answers} answers{lines}", wrong


PARTS: dict[str, Callable[[Path, argparse.Namespace], Result]] = {
    part.__name__: part
    for part in (faults, power, syncs, commits, ledger, damage, flips, machine, inputs, fuzz, readers)
}


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    return [scenario for scenario in SCENARIOS if not options.scenarios or scenario.name in options.scenarios]


def _project(folder: Path) -> Path:
    disk = folder / "disk"
    disk.mkdir()
    for command in (create, ingest(1), ingest(2)):
        command(disk)
    return disk


def _all(run: Callable[..., list[str]], cases: list[tuple[object, ...]], options: argparse.Namespace) -> Result:
    found: list[str] = []
    chosen = cases[options.offset :: options.every]
    for number, case in enumerate(chosen):
        found.extend(f"{case[0].name}, {case[1:]}: {what}" for what in run(case))  # type: ignore[attr-defined]
        if number % 50 == 0:
            gc.collect()
    return f"{len(chosen)} of {len(cases)} cases", found


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the parts and return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument(
        "--minutes", type=float, default=10, help="duration of the load, which starts after up to 20 seconds"
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--flips", type=int, default=2000, help="number of bits of a ledger to change, one at a time")
    parser.add_argument(
        "--held", type=int, default=60, help="number of checks and repairs of a ledger that cannot be opened"
    )
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--scenarios", nargs="*", help="names of the scenarios to run in faults, power and syncs")
    parser.add_argument("--every", type=int, default=1, help="run every nth case of faults and power")
    parser.add_argument("--offset", type=int, default=0, help="number of the first case")
    options = parser.parse_args(None if arguments is None else list(arguments))
    violations = 0
    gc.freeze()  # what is imported need not be looked through at each of thousands of collections
    for name in options.only:
        if name == "readers" and not options.minutes:
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync", return_value=None):
            figures, found = PARTS[name](Path(folder), options)
        violations += len(found)
        print(f"{name:<8} {figures}; {len(found)} violations; {time.monotonic() - begin:.0f} s", flush=True)
        for line in found[:SHOWN]:
            print(f"    {line}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
