"""What the tests of the command line share with those in the fast suite."""

from __future__ import annotations

from tests.integration.cli.conftest import _built, ingested, root, screen

__all__ = ["_built", "ingested", "root", "screen"]
