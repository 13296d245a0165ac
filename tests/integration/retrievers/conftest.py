"""A project that the tests of this folder share and do not change."""

from __future__ import annotations

import pytest

from llama_index_contextual.project.project import Project
from tests.integration.retrievers.corpus import project_of

TEXTS = {
    "dry": "Error code TS-999 means that the pump runs dry.",
    "valve": "Close the valve before the pump is switched off.",
    "revenue": "Revenue grew in the second quarter.",
}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project_of(tmp_path_factory.mktemp("built"), TEXTS)
