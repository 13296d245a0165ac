"""Measurements, run by hand or in CI as `python -m tests.benchmarks.NAME`; each prints the figures that it names."""
