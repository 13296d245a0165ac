"""What a project promises, on each engine."""

from tests.integration.backends.test_contract import *  # noqa: F403 - its tests
