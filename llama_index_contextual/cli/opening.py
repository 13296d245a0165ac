"""What `open` says before it reads a folder: the extras that its files need, and the models that are at hand."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from llama_index_contextual._utils.http import is_loopback
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.installation import missing_packages
from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.models import PROVIDERS, address_in_environment, missing_for
from llama_index_contextual.readers.files import IMAGE_SUFFIXES, discover
from llama_index_contextual.readers.ocr import engine_for

_NOUNS = {
    **dict.fromkeys((".docx", ".docm"), "Word file"),
    **dict.fromkeys((".xlsx", ".xlsm"), "Excel file"),
    **dict.fromkeys((".pptx", ".pptm"), "PowerPoint file"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "web page"),
}
_OLLAMA, _SECONDS = "http://127.0.0.1:11434", 0.5


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
    if nouns and missing_packages("office"):
        extras.append("office")
        reasons += [f"{pluralize(count, noun)} {_need(count)} [office]" for noun, count in nouns.most_common()]
    images = sum(suffixes[suffix] for suffix in IMAGE_SUFFIXES)
    if images and isinstance(engine_for("auto"), str):
        extras.append("ocr")
        reasons.append(f"{pluralize(images, 'image')} {_need(images)} [ocr]")
    if missing_packages("ui"):
        extras.append("ui")
        reasons.append("the view in a browser needs [ui]")
    return extras, reasons


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def models_at_hand() -> list[str]:
    """Return the LLMs that could write contexts and answers, each as the option that chooses it, with the reason.

    Only model servers on this machine are contacted.
    """
    ollama = address_in_environment(PROVIDERS["ollama"]) or _OLLAMA
    server = address_in_environment(PROVIDERS["openai-like"])
    found = []
    if name := _model_served(f"{ollama.rstrip('/')}/v1"):
        found.append((f"ollama:{name}", "Ollama is running on this machine"))
    if server and (name := _model_served(server)):
        found.append((f"openai-like:{name}", f"it is served at {server}"))
    elif os.environ.get("OPENAI_API_KEY"):
        found.append((DEFAULT_LLM, "OPENAI_API_KEY is set"))
    if os.environ.get("ANTHROPIC_API_KEY"):
        found.append(("anthropic:MODEL", "ANTHROPIC_API_KEY is set"))
    missing = {name: missing_for(name, setting="llm") for name, _ in found}
    return [
        f"--llm {name} ({reason}{f'; {missing[name]}'.rstrip('.') if missing[name] else ''})" for name, reason in found
    ]


def _model_served(address: str) -> str | None:
    """Return the name of an LLM on a server on this machine that has OpenAI's list of models, or None."""
    if not is_loopback(urlsplit(address).hostname or ""):
        return None
    try:
        with httpx.Client(timeout=_SECONDS, trust_env=False) as client:
            names = [str(model["id"]) for model in client.get(f"{address.rstrip('/')}/models").json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
    return next((name for name in names if "embed" not in name and name.isprintable()), None)


def describe_models(config: ProjectConfig) -> str:
    """Return a sentence about the LLM that a project uses, and those that it could use."""
    if config.context == "llm":
        return f"{config.llm} writes the contexts and answers; embeddings and search need no network."
    if answering := config.answer_llm or config.llm:
        return f"{answering} answers questions; contexts, embeddings and search need no network."
    options = models_at_hand()
    chosen = "No LLM is used: passages are found and shown, but no answers are written, and nothing is sent or paid."
    if not options:
        return f"{chosen} For answers, install Ollama (https://ollama.com), or set OPENAI_API_KEY, and add --llm."
    return f"{chosen} For answers: {' or '.join(options)}."
