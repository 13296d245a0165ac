"""Figures are shown with hits and answers: in Python, on the command line, in the Workbench, and to agents."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from llama_index_contextual import Project, ProjectConfig, ProjectManager
from llama_index_contextual.agno import ContextualKnowledge, ContextualTools
from llama_index_contextual.errors import CorruptVersionError
from llama_index_contextual.mcp import make_server
from llama_index_contextual.ui import make_app
from tests.support.cli import run
from tests.support.figures import PUMP, TEXT, VALVE, manual
from tests.support.models import ScriptedLLM

VALVE_CAPTION = "Figure 2: Spring of the relief valve"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of a manual with two figures; tests do not change it."""
    folder = tmp_path_factory.mktemp("figures")
    manual(folder / "manual.pdf", [PUMP, VALVE, TEXT])
    project = ProjectManager(folder / "projects").create("manuals", ProjectConfig.local(chunk_size=60, chunk_overlap=6))
    project.ingest([folder / "manual.pdf"])
    return project


@pytest.fixture
def browser(project: Project) -> Iterator[TestClient]:
    app = make_app([project])
    yield TestClient(app, base_url="http://127.0.0.1")
    app.state.originals.renderer.close()


def size_of(data: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(data)).size


def test_a_response_lists_the_figures_of_its_hits(project: Project) -> None:
    response = project.retrieve("spring of the relief valve", top_k=1)
    [figure] = json.loads(json.dumps(response.to_dict()))["results"][0]["figures"]
    assert (figure["caption"], figure["page"], figure["kind"]) == (VALVE_CAPTION, 2, "picture")
    assert size_of(Path(figure["path"]).read_bytes()) == (figure["width"], figure["height"])
    [figure] = project.only({"file_name": "manual.pdf"}).retrieve("spring of the relief valve", top_k=1)[0].figures
    assert figure.read_bytes()


def test_a_copy_on_another_machine_has_the_pictures(project: Project, tmp_path: Path) -> None:
    manager, elsewhere = ProjectManager(project.directory.parent), ProjectManager(tmp_path / "elsewhere")
    manager.export_project("manuals", tmp_path / "manuals.zip")
    elsewhere.import_project(tmp_path / "manuals.zip")
    copy = elsewhere.load("manuals")
    pictures = [
        {figure.path.name: figure.read_bytes() for hit in one.retrieve("pump valve", top_k=9) for figure in hit.figures}
        for one in (project, copy)
    ]
    assert len(pictures[0]) == 2
    assert pictures[1] == pictures[0]
    assert copy.verify().sound
    first, _ = copy.directory.rglob("*.png")
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(CorruptVersionError, match=f"{first.name} has changed since it was published"):
        elsewhere.export_project("manuals", tmp_path / "damaged.zip")
    assert not (tmp_path / "damaged.zip").exists()


def test_the_command_line_shows_a_line_for_each_figure(project: Project) -> None:
    shown = run("search", "manuals", "spring of the relief valve", "--root", str(project.directory.parent))
    assert f"▣ {VALVE_CAPTION} (page 2)" in shown.out
    assert "Cross-section" not in shown.out.partition(VALVE_CAPTION)[0]


def test_the_workbench_shows_a_picture_with_its_caption(browser: TestClient, project: Project) -> None:
    page = browser.get("/p/manuals/", params={"q": "spring of the relief valve"}).text
    address = page.partition('<ul class="figures"')[2].partition('src="')[2].partition('"')[0].replace("&amp;", "&")
    assert f'alt="{VALVE_CAPTION}"' in page
    reply = browser.get(address)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/png")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in reply.headers["content-security-policy"]
    assert reply.headers["cache-control"].endswith("immutable")
    assert reply.content == project.retrieve("spring of the relief valve")[0].figures[0].read_bytes()


def test_the_view_of_a_passage_marks_its_figure_on_the_page(browser: TestClient, project: Project) -> None:
    hit = project.retrieve("spring of the relief valve")[0]
    page = browser.get(f"/p/manuals/passage/{hit.node_id}", params={"q": "spring of the relief valve"}).text
    assert '<h2 id="figures">Figure</h2>' in page
    box = hit.figures[0].box
    assert box is not None
    assert f'class="mark-figure" x="{box[0]:.1f}" y="{box[1]:.1f}"' in page


@pytest.mark.parametrize(
    "query",
    [
        {"chunk": "unknown", "id": "1"},
        {"chunk": "", "id": "1"},
        {"chunk": "{hit}", "id": "99"},
        {"chunk": "{hit}", "id": "../../project.json"},
        {"chunk": "../../project.json", "id": "1"},
    ],
)
def test_only_figures_of_passages_are_served(browser: TestClient, project: Project, query: dict[str, str]) -> None:
    hit = project.retrieve("spring of the relief valve")[0]
    values = {name: value.format(hit=hit.node_id) for name, value in query.items()}
    assert browser.get("/p/manuals/figure", params=values).status_code == 404


def test_an_answer_has_the_figures_of_the_sentences_it_cites(project: Project) -> None:
    llm = ScriptedLLM(default="The relief valve opens above three bar [Source 1].")
    answer: Any = project.as_query_engine(llm=llm).query("When does the relief valve open?")
    assert [figure.caption for figure in answer.figures] == [VALVE_CAPTION]
    assert answer.figures[0].read_bytes()
    assert [figure["caption"] for figure in answer.to_dict()["figures"]] == [VALVE_CAPTION]


async def test_mcp_returns_pictures_only_if_they_are_requested(project: Project) -> None:
    server = make_server([project])
    reply: Any = await server.call_tool("search", {"query": "spring of the relief valve", "top_k": 1})
    assert [content.type for content in reply.content] == ["text"]
    assert f"Picture on page 2: {VALVE_CAPTION}" in reply.content[0].text
    assert [one["caption"] for one in reply.structured_content["passages"][0]["figures"]] == [VALVE_CAPTION]
    arguments = {"query": "spring of the relief valve", "top_k": 1, "pictures": True}
    reply = await server.call_tool("search", arguments)
    assert [content.type for content in reply.content] == ["text", "image"]
    assert reply.content[1].mime_type == "image/png"
    assert size_of(base64.b64decode(reply.content[1].data))[0] > 100


def test_agno_gets_pictures_as_images(project: Project) -> None:
    search = ContextualTools(project, suffix="").functions["search"].entrypoint
    assert search is not None
    assert isinstance(search(query="spring of the relief valve"), str)
    result = search(query="spring of the relief valve", top_k=1, pictures=True)
    [image] = result.images
    assert (image.mime_type, image.format, image.alt_text) == ("image/png", "png", VALVE_CAPTION)
    assert size_of(image.content)[0] > 100
    [document] = ContextualKnowledge(project, max_results=1).search("spring of the relief valve")
    assert [figure["caption"] for figure in document.meta_data["figures"]] == [VALVE_CAPTION]


def test_the_workbench_shows_the_figures_of_an_answer(project: Project) -> None:
    llm = ScriptedLLM(default="The relief valve opens above three bar [Source 1].")
    asked = ProjectManager(project.directory.parent).load("manuals", llm=llm)
    with TestClient(make_app([asked]), base_url="http://127.0.0.1", follow_redirects=True) as client:
        page = client.post("/p/manuals/ask", data={"q": "When does the relief valve open?"}).text
        address = page.partition('<ul class="figures"')[2].partition('src="')[2].partition('"')[0].replace("&amp;", "&")
        assert client.get(address).content == project.retrieve("relief valve spring")[0].figures[0].read_bytes()
