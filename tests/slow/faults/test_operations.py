"""Every operation on files fails once in every way, and the power is cut at each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.slow.faults.cases import SCENARIOS, Bench, Scenario, acknowledged, attempt, violations
from tests.slow.faults.system import FAULTS, Fault, FaultySystem, PowerLossSystem

SAMPLE = 97
"""Every so many cases one is run here; `python -m tests.benchmarks.faults` runs them all."""


def fault_cases(bench: Bench, scenarios: Sequence[Scenario] = SCENARIOS) -> Iterator[tuple[Scenario, int, Fault, bool]]:
    """Yield every operation of every command with every fault."""
    for scenario in scenarios:
        for at in range(bench.operations(scenario)):
            yield from ((scenario, at, fault, False) for fault in FAULTS)
            yield scenario, at, "exit", True


def power_cases(
    bench: Bench, seeds: int, scenarios: Sequence[Scenario] = SCENARIOS
) -> Iterator[tuple[Scenario, int | None, int]]:
    """Yield every operation of every command, and its end, with several seeds."""
    for scenario in scenarios:
        for at in (*range(bench.operations(scenario)), None):
            yield from ((scenario, at, seed) for seed in range(seeds * _more(at)))


def _more(at: int | None) -> int:
    """Return how many times the seeds: what was acknowledged must hold whatever is lost."""
    return 4 if at is None else 1


def run_fault(bench: Bench, scenario: Scenario, at: int, fault: Fault, after: bool) -> list[str]:
    """Run one case and return what does not hold."""
    disk = bench.disk(scenario)
    system = FaultySystem(at, fault, after=after)
    with acknowledged() as paid:
        error = attempt(scenario.run, disk, system)
    return violations(bench, scenario, disk, paid, finished=error is None)


def run_power_loss(
    bench: Bench, scenario: Scenario, at: int | None, seed: int, skip: frozenset[str] = frozenset()
) -> tuple[list[str], set[str]]:
    """Run one case; return what does not hold, and the places that asked for a sync."""
    disk = bench.disk(scenario)
    system = PowerLossSystem(disk, at, skip=skip)
    with acknowledged() as paid:
        error = attempt(scenario.run, disk, system)
    system.lose_power(seed)
    return violations(bench, scenario, disk, paid, finished=error is None), system.sites


def needless_syncs(bench: Bench, seeds: int, scenarios: Sequence[Scenario] = SCENARIOS) -> dict[str, int]:
    """Let each place that asks for a sync do without, and return how many cases each one took to be missed; 0: never.

    Only then is it shown that the cases above would notice a sync that is not there.
    """
    users: dict[str, list[Scenario]] = {}
    for scenario in scenarios:
        for place in run_power_loss(bench, scenario, None, 0)[1]:
            users.setdefault(place, []).append(scenario)
    return {place: _cases_until_missed(bench, place, users[place], seeds) for place in sorted(users)}


def _cases_until_missed(bench: Bench, place: str, scenarios: list[Scenario], seeds: int) -> int:
    cases = 0
    most = max(bench.operations(scenario) for scenario in scenarios)
    for back in range(most + 1):  # from the end: what is missing is missed there first
        for scenario in scenarios:
            at = None if back == 0 else bench.operations(scenario) - back
            if at is not None and at < 0:
                continue
            for seed in range(seeds * _more(at)):
                cases += 1
                if run_power_loss(bench, scenario, at, seed, frozenset({place}))[0]:
                    return cases
    return 0


def test_a_failed_operation_leaves_the_state_before_or_after_and_can_be_repeated(bench: Bench) -> None:
    for case in list(fault_cases(bench))[::SAMPLE]:
        assert run_fault(bench, *case) == [], case[1:]


def test_after_a_power_cut_the_state_is_before_or_after_and_the_operation_can_be_repeated(bench: Bench) -> None:
    for case in list(power_cases(bench, 3))[::SAMPLE]:
        result, _ = run_power_loss(bench, *case)
        assert result == [], case[1:]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_completed_commands_survive_a_power_cut(bench: Bench, scenario: Scenario) -> None:
    for seed in range(2):
        assert run_power_loss(bench, scenario, None, seed)[0] == [], seed
