"""Questions whose answer is in a figure: `python -m tests.benchmarks.figures`.

The benchmark writes 20 manuals of fictional machines as PDF files. Each has three figures, and a question for each:
one that its caption answers, one that the sentence which refers to it answers, and one that only words in the picture
answer. Three more questions of each manual are answered by its text. A question is a hit if one of the first five
passages contains the answer; for the questions about figures, `shown` counts those for which the picture is beside one
of these passages.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from fpdf import FPDF
from PIL import Image, ImageDraw, ImageFont

from llama_index_contextual import Project, ProjectConfig, ProjectManager

K = 5
MACHINES = (
    *("Albatros pump", "Bussard mixer", "Condor press", "Dohle boiler", "Elster drill", "Falke compressor"),
    *("Greif saw", "Habicht lathe", "Ibis conveyor", "Jakana dryer", "Kauz centrifuge", "Lerche chiller"),
    *("Milan crusher", "Nandu winch", "Otus extruder", "Pirol loom", "Rabe furnace", "Storch crane"),
    *("Taube packer", "Uhu turbine"),
)
PARTS = ("inlet filter", "bearing block", "safety valve", "drive belt", "oil sump", "control panel", "guide rail")
COLOURS = ("red", "blue", "green", "yellow", "black", "white")
FILLER = (
    "Work on the machine is done by trained staff only, after the main switch has been locked.",
    "Spare parts are ordered from the service department with the number on the type plate.",
    "The place of installation is dry, free of dust, and level within two millimetres.",
    "After a longer standstill, all moving parts are turned by hand before the motor is started.",
    "Noise is measured at a distance of one metre with the covers closed.",
)

Kind = Literal["caption", "reference", "picture", "text"]


class Question(NamedTuple):
    """A question, what answers it, and the caption of the figure that belongs to the answer."""

    kind: Kind
    text: str
    answer: str
    caption: str


def write_manual(path: Path, machine: str, number: int) -> Iterator[Question]:
    """Write the manual of a machine, and yield its questions."""
    source = random.Random(number)
    parts = source.sample(PARTS, 6)
    code, torque, hours = f"K{number:02}-{source.randrange(100, 999)}", 20 + 5 * number, 200 + 50 * number
    colour, mass, volts = source.choice(COLOURS), 80 + 7 * number, source.choice((230, 400, 690))
    captions = [
        f"Figure 1: Position of the {parts[0]} of the {machine} behind the {colour} cover",
        f"Figure 2: {parts[1].capitalize()} of the {machine}",
        f"Figure 3: {parts[2].capitalize()} of the {machine}",
    ]
    texts = [
        f"The {machine} has a mass of {mass} kilograms without oil.",
        f"The {parts[1]} of the {machine} is greased every {hours} hours, see Figure 2.",
        f"The {parts[3]} of the {machine} runs on {volts} volts.",
    ]
    words = [["cover", "A", "B"], ["grease", "C"], [f"{code}", f"{torque} Nm"]]
    pdf = FPDF()
    for page in range(3):
        pdf.add_page()
        pdf.set_font("Helvetica", size=11)
        pdf.multi_cell(0, 6, " ".join([texts[page], *source.sample(FILLER, 4)]))
        pdf.image(drawing(words[page], source), x=40, y=80, w=100)
        pdf.set_y(160)
        pdf.set_font("Helvetica", size=9)
        pdf.multi_cell(0, 5, captions[page])
        pdf.set_font("Helvetica", size=11)
        pdf.set_y(175)
        pdf.multi_cell(0, 6, " ".join(source.sample(FILLER, 4)))
    pdf.output(str(path))
    yield Question("caption", f"Where is the {parts[0]} of the {machine}?", f"behind the {colour} cover", captions[0])
    yield Question("reference", f"How often is the {parts[1]} of the {machine} greased?", f"{hours} hours", captions[1])
    yield Question("picture", f"Which torque has the {parts[2]} with the code {code}?", f"{torque} Nm", captions[2])
    yield Question("text", f"How heavy is the {machine}?", f"{mass} kilograms", "")
    yield Question("text", f"Which voltage does the {parts[3]} of the {machine} need?", f"{volts} volts", "")
    yield Question("text", f"After how many hours is the {machine} greased?", f"{hours} hours", "")


def drawing(words: Sequence[str], source: random.Random) -> Image.Image:
    """Return a picture with lines, circles and words."""
    image = Image.new("RGB", (800, 560), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=44)
    for _ in range(6):
        x, y, size = source.randrange(40, 700), source.randrange(250, 480), source.randrange(30, 90)
        draw.ellipse((x, y, x + size, y + size), outline="black", width=4)
        draw.line((x, y, source.randrange(800), source.randrange(250, 560)), fill="gray", width=4)
    for at, word in enumerate(words):
        draw.text((60, 20 + 70 * at), word, fill="black", font=font)
    return image


def measure(folder: Path, files: Sequence[Path], questions: Sequence[Question], figures: bool | Literal["ocr"]) -> str:
    """Return a line of results for a value of the setting."""
    config = ProjectConfig.local(figures=figures, chunk_size=160, chunk_overlap=16)
    project = ProjectManager(folder / f"{figures}").create("manuals", config)
    started = time.perf_counter()
    project.ingest(files)
    seconds = time.perf_counter() - started
    counts = []
    for kind in ("caption", "reference", "picture", "text"):
        of_kind = [question for question in questions if question.kind == kind]
        outcomes = [outcome(project, question) for question in of_kind]
        hits, shown = (sum(column) for column in zip(*outcomes, strict=True))
        counts.append(f"{hits:>3}/{len(of_kind)}" + ("" if kind == "text" else f" {shown:>3} shown"))
    size = sum(path.stat().st_size for path in project.directory.rglob("*/figures/*"))
    return f"{figures!s:>6} " + "".join(f"{count:>20}" for count in counts) + f"{seconds:>9.1f} s {size / 1e6:>6.1f} MB"


def outcome(project: Project, question: Question) -> tuple[bool, bool]:
    """Return whether one of the first passages has the answer, and whether the figure is beside one of them."""
    hits = project.retrieve(question.text, top_k=K).results
    answer = "".join(question.answer.split())  # OCR may lose spaces
    found = any(answer in "".join(hit.text.split()) for hit in hits)
    captions = [" ".join(figure.caption.split()) for hit in hits for figure in hit.near_figures]
    return found, question.caption in captions


def main() -> None:
    """Print the results without figures, with figures, and with the text in them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-ocr", action="store_true", help="leave out the reading of pictures")
    parser.add_argument("--manuals", type=int, default=len(MACHINES), help="number of manuals")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder, files, questions = Path(name), [], []
        for number, machine in enumerate(MACHINES[: arguments.manuals]):
            files.append(folder / f"{machine.replace(' ', '-')}.pdf")
            questions += write_manual(files[-1], machine, number)
        print(f"{len(questions)} questions, {len(files)} manuals; hit@{K}")
        print("figures" + "".join(f"{kind:>20}" for kind in ("caption", "reference", "picture", "text")))
        for figures in (False, True) if arguments.no_ocr else (False, True, "ocr"):
            print(measure(folder, files, questions, figures))


if __name__ == "__main__":
    main()
