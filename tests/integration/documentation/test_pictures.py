"""The pictures of the README, and the script that makes them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.source import ROOT

ASSETS = ROOT / "docs" / "assets"


def load(name: str) -> ModuleType:
    """Return a script of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that makes the pictures."""
    return load("make_pictures")


@pytest.mark.parametrize(("name", "picture"), [("diagram", "overview.svg"), ("chart", "recall.svg")])
def test_a_drawing_is_what_the_script_draws_today(
    name: str, picture: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, str] = {}
    monkeypatch.setattr(script, "write", drawn.__setitem__)
    script.PICTURES[name]()
    assert drawn[picture] == (ASSETS / picture).read_text(encoding="utf-8"), (
        f"run `python docs/make_pictures.py {name}`"
    )


def test_a_diagram_of_the_concepts_is_what_the_script_draws_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagrams = load("draw_diagrams")
    monkeypatch.setattr(diagrams, "ASSETS", tmp_path)
    diagrams.main()
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert drawn == {name: (ASSETS / name).read_text(encoding="utf-8") for name in drawn}, (
        "run `python docs/draw_diagrams.py`"
    )
    from_version = re.findall(r'd="M\S+ \S+?V150H(\d+)"', drawn["way.svg"])
    assert from_version == ["308", "542"], "arrows lead from the version to both rankings"
