"""The pictures of the README, and the script that makes them."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.source import ROOT

ASSETS = ROOT / "docs" / "assets"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURES = re.findall(r"!\[([^\]]+)\]\((docs/assets/[^)]+)\)", README)
LARGEST = 300_000
"""Bytes of a picture."""


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


def test_the_readme_shows_two_pictures_with_descriptions() -> None:
    assert [Path(target).name for _, target in PICTURES] == ["overview.svg", "marked-page.png"]
    assert all(len(text.split()) > 5 for text, _ in PICTURES)
    assert {
        target: (ROOT / target).stat().st_size for _, target in PICTURES if (ROOT / target).stat().st_size > LARGEST
    } == {}


def test_every_picture_of_the_workbench_is_shown_in_the_colours_of_the_page() -> None:
    shown = [
        (path.name, *picture)
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for picture in re.findall(
            r"!\[([^\]]+)\]\([^)]*assets/([\w-]+)\.png(#[\w-]*)?\)", path.read_text(encoding="utf-8")
        )
    ]
    light = [
        (page, text, f"{name}-dark", "#only-dark") for page, text, name, scheme in shown if scheme == "#only-light"
    ]
    assert len(light) >= 4
    assert light == [picture for picture in shown if picture[3] == "#only-dark"]
    assert len(shown) == 2 * len(light)
    for _, _, name, _ in shown:
        assert 10_000 < (ASSETS / f"{name}.png").stat().st_size < LARGEST


@pytest.mark.parametrize("name", ["overview.svg", "recall.svg", "terminal.svg"])
def test_a_drawing_is_well_formed_described_and_loads_nothing(name: str) -> None:
    text = (ASSETS / name).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.get("aria-label")
    assert {element.tag.rpartition("}")[2] for element in root.iter()}.isdisjoint({"script", "image", "foreignObject"})
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[^\"')]+", text) == []


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


def test_the_chart_shows_every_figure_that_the_benchmarks_printed_clear_of_the_grid() -> None:
    rows = json.loads((ASSETS / "figures.json").read_text(encoding="utf-8"))["rows"]
    texts = [e for e in ElementTree.parse(ASSETS / "recall.svg").iter() if e.tag.endswith("text")]
    shown = [text.text for text in texts if "value" in text.get("class", "")]  # with an edge that hides the grid
    wanted = [f"{row[cut]:.1f}" for row in rows for cut in ("R@5", "R@10", "R@20")]
    assert len(wanted) == 15
    assert [figure for figure in wanted if figure not in shown] == []


def test_the_recording_holds_the_commands_and_their_output(script: ModuleType) -> None:
    root = ElementTree.parse(ASSETS / "terminal.svg").getroot()
    text = "".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    assert [command for command in script.COMMANDS if command not in text] == []
    assert "Version v000001 is live" in text
    assert "The processor did not answer its watchdog for eight seconds" in text


def test_a_screen_shows_the_last_state_of_a_progress_bar(script: ModuleType) -> None:
    output = "\x1b[31m10%\x1b[0m\r\x1b[2K\x1b[32m100%\x1b[0m\r\nfirst\r\nsecond\x1b[1A\r\x1b[2Kthird\r\n"
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in script.screen(output)]
    assert lines == ["100%", "third", "second"]


@pytest.mark.skipif(sys.platform == "win32", reason="a recording needs a pseudo-terminal")
def test_a_recording_of_a_command_that_fails_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="info nothing failed"):
        script.run_in_terminal(f"{script.PROGRAM} info nothing", tmp_path)


@pytest.mark.parametrize("name", ["search-view.png", "marked-page.png", "ask-view.png", "add-view.png"])
def test_a_screenshot_is_small_and_1280_pixels_wide(name: str) -> None:
    assert (ASSETS / name).stat().st_size <= LARGEST
    head = (ASSETS / name).read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24])[0] == 1280
