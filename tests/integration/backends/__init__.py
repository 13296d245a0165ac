"""Contract of the storage backends: what a project promises, on files; `tests/slow/backends` holds engines to it."""

import pytest

pytest.register_assert_rewrite("tests.integration.backends.site")
