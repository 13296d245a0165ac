"""Files, settings and names with any content raise only errors of this package.

`HYPOTHESIS_PROFILE=long` runs many more examples; `python -m tests.benchmarks.faults --only inputs` does.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.evaluation.questions import parse_questions
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.ledger_lines import read_ledger
from llama_index_contextual.index.manifest import MANIFEST, Manifest, checksum
from llama_index_contextual.index.part import open_parts
from llama_index_contextual.index.project_file import PROJECT_FILE, check_name, read_config
from llama_index_contextual.index.versions import CURRENT, read_current
from tests.slow.faults.bad_inputs import CASES, message_of
from tests.slow.faults.cases import NAME, ROOT, create, ingest

VERSION = Path("versions") / "v000001"
ROW = {"key": "k", "context": "c", "model": "m", "input_tokens": 1, "cached_tokens": 0, "output_tokens": 1}
QUESTION = {"id": "q", "question": "Who?", "relevant": [{"file": "a.md", "start": 0, "end": 9}]}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@st.composite
def spoilt(draw: st.DrawFn, sound: Any) -> Any:
    """Draw a JSON value of which one place has been replaced, removed, or given a further key."""
    whole = copy.deepcopy(sound)
    place, parent, key = whole, None, None
    while isinstance(place, (dict, list)) and place and draw(st.integers(0, 3)):
        parent, key = place, draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place = place[key]
    if parent is None:
        return draw(values)
    how = draw(st.sampled_from(("replace", "remove", "add")))
    if how == "replace":
        parent[key] = draw(values)
    elif how == "remove":
        del parent[key]
    elif isinstance(parent, dict):
        parent[draw(st.text(max_size=8))] = draw(values)
    return whole


def passes_or_is_ours(run: Callable[[], object]) -> None:
    try:
        run()
    except ContextualError as error:
        message = str(error)
    else:
        return
    assert len(message) > 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files every example writes anew."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def project_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    disk = tmp_path_factory.mktemp("inputs")
    create(disk)
    ingest(1)(disk)
    return disk / ROOT / NAME


@given(data=st.data())
def test_any_manifest_is_read_or_raises_an_error_of_the_package(data: st.DataObject, project_dir: Path) -> None:
    version = project_dir / VERSION
    content = data.draw(spoilt(json.loads((version / MANIFEST).read_text("utf-8"))))
    if isinstance(content, dict) and data.draw(st.booleans()):
        content.pop("xxh3", None)
        content["xxh3"] = checksum(content)

    def read() -> None:
        manifest = Manifest.from_json(json.dumps(content).encode(), file=MANIFEST)
        for part in open_parts(version, manifest):
            assert part.size == sum(record.chunks for record in part.records)
        ProjectConfig(**manifest.config)

    passes_or_is_ours(read)


@given(data=st.data())
def test_any_project_file_is_read_or_raises_an_error_of_the_package(
    data: st.DataObject, project_dir: Path, folder: Path
) -> None:
    content = data.draw(spoilt(json.loads((project_dir / PROJECT_FILE).read_text("utf-8"))))
    if isinstance(content, dict) and data.draw(st.booleans()):
        content.pop("xxh3", None)
        content["xxh3"] = checksum(content)
    _write_anew(folder / PROJECT_FILE, json.dumps(content).encode())
    passes_or_is_ours(lambda: read_config(folder))


@given(st.dictionaries(st.sampled_from(sorted(ProjectConfig.model_fields)) | st.text(max_size=5), values, max_size=3))
def test_any_settings_are_accepted_or_raise_an_error_of_the_package(changes: dict[str, Any]) -> None:
    passes_or_is_ours(lambda: ProjectConfig(**changes))
    passes_or_is_ours(lambda: ProjectConfig.local().changed(**changes))


@given(st.binary(max_size=60) | st.from_regex(rb"(v\d{1,9}|none)\nnewest (v\d{1,9}|none)\nxxh3 [0-9a-f]{16}\n"))
def test_any_current_file_is_read_or_raises_an_error_of_the_package(folder: Path, content: bytes) -> None:
    _write_anew(folder / CURRENT, content)
    passes_or_is_ours(lambda: read_current(folder))


@given(st.lists(spoilt(ROW).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=30), max_size=3))
def test_any_ledger_lines_are_imported_or_raise_an_error_of_the_package(folder: Path, lines: list[bytes]) -> None:
    with closing(Ledger(None)) as ledger:
        passes_or_is_ours(lambda: read_ledger(ledger, _write_anew(folder / "lines", b"\n".join(lines))))


@given(st.lists(spoilt(QUESTION).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=30), max_size=3))
def test_any_question_file_is_parsed_or_raises_an_error_of_the_package(lines: list[bytes]) -> None:
    passes_or_is_ours(lambda: parse_questions(b"\n".join(lines)))


@given(st.text(max_size=90))
def test_any_project_name_is_accepted_or_raises_an_error_of_the_package(name: str) -> None:
    passes_or_is_ours(lambda: check_name(name))


def _write_anew(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)  # a file that is emptied and written anew may wait for the disk
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("what", sorted(CASES))
def test_a_bad_input_raises_an_error_with_a_message(what: str, tmp_path: Path) -> None:
    assert message_of(what, tmp_path)
