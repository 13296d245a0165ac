"""Contract of the storage backends: whatever a project promises holds on each engine of `backends.py`."""

import pytest

pytest.register_assert_rewrite("tests.integration.backends.site")
