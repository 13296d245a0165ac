"""What `open` says before it reads a folder: the extras that its files need, and the models that are at hand."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from llama_index_contextual._utils.http import is_loopback
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import DEFAULT_LLM
from llama_index_contextual.readers.files import IMAGE_SUFFIXES, discover
from llama_index_contextual.readers.ocr import engine_for

_NOUNS = {
    **dict.fromkeys((".docx", ".docm"), "Word file"),
    **dict.fromkeys((".xlsx", ".xlsm"), "Excel file"),
    **dict.fromkeys((".pptx", ".pptm"), "PowerPoint file"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "web page"),
}
_OFFICE = ("lxml", "mammoth", "openpyxl", "pptx")
_UI = ("nh3", "PIL", "starlette", "uvicorn")
_OLLAMA, _OLLAMA_SECONDS = "http://127.0.0.1:11434", 0.5


def needed_extras(folder: Path) -> tuple[list[str], list[str]]:
    """Return the extras that are not installed and that a folder needs, and a phrase for each reason.

    Args:
        folder: Folder with the documents; its files are listed, but not opened.
    """
    suffixes = Counter(Path(file.path).suffix.lower() for file in discover([folder]).files)
    extras, reasons = [], []
    nouns: Counter[str] = Counter()
    for suffix, count in suffixes.items():
        if suffix in _NOUNS:
            nouns[_NOUNS[suffix]] += count
    if nouns and not _are_installed(_OFFICE):
        extras.append("office")
        reasons += [f"{pluralize(count, noun)} {_need(count)} [office]" for noun, count in nouns.most_common()]
    images = sum(suffixes[suffix] for suffix in IMAGE_SUFFIXES)
    if images and isinstance(engine_for("auto"), str):
        extras.append("ocr")
        reasons.append(f"{pluralize(images, 'image')} {_need(images)} [ocr]")
    if not _are_installed(_UI):
        extras.append("ui")
        reasons.append("the view in a browser needs [ui]")
    return extras, reasons


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def _are_installed(modules: Sequence[str]) -> bool:
    return all(find_spec(module) is not None for module in modules)


def models_at_hand(environment: Mapping[str, str]) -> list[str]:
    """Return the LLMs that could write contexts and answers, each as the option that chooses it.

    Only a model server on this machine is contacted.

    Args:
        environment: Environment variables, such as `os.environ`.
    """
    options = []
    if name := _ollama_model(environment.get("OLLAMA_HOST", "")):
        options.append(f"--llm ollama:{name} (Ollama is running on this machine)")
    if environment.get("OPENAI_API_KEY"):
        options.append(f"--llm {DEFAULT_LLM} (OPENAI_API_KEY is set)")
    if environment.get("ANTHROPIC_API_KEY"):
        options.append("--llm anthropic:MODEL (ANTHROPIC_API_KEY is set)")
    return options


def _ollama_model(host: str) -> str | None:
    """Return the name of a model of an Ollama server on this machine, or None."""
    address = host if "://" in host else f"http://{host}" if host else _OLLAMA
    parts = urlsplit(address)
    if not is_loopback(parts.hostname or ""):
        return None
    url = f"{parts.scheme}://{parts.netloc if parts.port else f'{parts.netloc}:11434'}/api/tags"
    try:
        with httpx.Client(timeout=_OLLAMA_SECONDS, trust_env=False) as client:
            names = [str(model["name"]) for model in client.get(url).json()["models"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return next((name for name in names if "embed" not in name and name.isprintable()), None)


def describe_models(llm: str | None) -> str:
    """Return a sentence about the LLM that `open` uses, and those that it could use."""
    if llm is not None:
        return f"{llm} writes the contexts and answers; embeddings and search need no network."
    options = models_at_hand(os.environ)
    chosen = "No LLM is used: passages are found and shown, but no answers are written, and nothing is sent or paid."
    if not options:
        return f"{chosen} For answers, install Ollama (https://ollama.com), or set OPENAI_API_KEY, and add --llm."
    return f"{chosen} For answers: {' or '.join(options)}."
