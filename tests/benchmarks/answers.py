"""Processor time of an answer, compared with LlamaIndex's engine on the same retriever.

    python -m tests.benchmarks.answers

The questions about the example documents are answered alternately by the query engine of a project and by
`RetrieverQueryEngine` with the project's retriever. The model is a scripted server in a process of its own, so that
only the work on this side of the connection is measured. `--profile` prints the functions of this package that take
most of the time.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.examples import DATA
from tests.support.provider_process import ProviderProcess

QUESTIONS = (
    "What does error TS-999 mean?",
    "How is garden water treated in Upper Vale?",
    "Which tariff applies in Tarn Coast?",
    "How often must the sensor be calibrated?",
    "Who pays for repairs?",
)
ANSWER = (
    "It means that the watchdog has reset the station [Source 1]. The station then starts again and sends the values"
    " that it has stored in the meantime, so that no reading is lost [Source 2]."
)


def milliseconds(engines: Sequence[Callable[[str], Any]], *, answers: int) -> list[float]:
    """Return the median processor time of an answer in milliseconds for each engine, measured alternately."""
    times: list[list[float]] = [[] for _ in engines]
    for number in range(-5, answers):  # the first answers load what later ones use again
        question = f"{QUESTIONS[number % len(QUESTIONS)]} Answer {number}."
        for of_engine, query in zip(times, engines, strict=True):
            start = time.process_time()
            query(question)
            if number >= 0:
                of_engine.append(1000 * (time.process_time() - start))
    return [statistics.median(of_engine) for of_engine in times]


def main() -> None:
    """Measure, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=60, help="answers of each engine")
    parser.add_argument("--profile", action="store_true", help="profile the project's engine")
    arguments = parser.parse_args()
    with ProviderProcess() as provider, tempfile.TemporaryDirectory() as folder:
        provider.enqueue(*[ANSWER] * 4 * (arguments.answers + 5))
        llm = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="any", max_retries=0)
        project = ProjectManager(Path(folder)).create("examples", ProjectConfig.local(), llm=llm)
        project.ingest([DATA])
        grounded = project.as_query_engine()
        stock = RetrieverQueryEngine.from_args(project.as_retriever(), llm=llm)
        anew: Callable[[str], Any] = lambda question: project.as_query_engine().query(question)  # noqa: E731
        if arguments.profile:
            milliseconds([grounded.query], answers=5)
            with cProfile.Profile() as profile:
                milliseconds([grounded.query], answers=arguments.answers)
            pstats.Stats(profile).sort_stats("cumulative").print_stats("llama_index_contextual", 40)
            return
        ours, each, theirs = milliseconds([grounded.query, anew, stock.query], answers=arguments.answers)
    print(f"query engine of the project       {ours:6.1f} ms")
    print(f"  a new engine for each question  {each:6.1f} ms")
    print(f"RetrieverQueryEngine              {theirs:6.1f} ms")
    print(f"ratio                             {ours / theirs:6.2f}")


if __name__ == "__main__":
    main()
