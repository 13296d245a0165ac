"""Measurements, run manually or in CI as `python -m tests.benchmarks.NAME`. Each prints its figures."""
