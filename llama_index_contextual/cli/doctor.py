"""Checks of the projects folder, the projects and their models for the `doctor` command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual._utils.clients import address_of
from llama_index_contextual._utils.http import is_loopback
from llama_index_contextual._utils.text import pluralize, quote_word
from llama_index_contextual.cli.common import PROGRAM, with_environment
from llama_index_contextual.cli.installation import Check
from llama_index_contextual.config import AUTO, SPOTLIGHT, ProjectConfig
from llama_index_contextual.embeddings.languages import MULTILINGUAL, unknown_languages
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.index import files, project_file
from llama_index_contextual.index.sources import input_of
from llama_index_contextual.index.verify import LEFTOVER, command_for, verify_project
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import (
    is_creatable,
    load_llm,
    missing_for,
    model_folder,
    settings_without_effect,
)
from llama_index_contextual.money.price import is_in_process
from llama_index_contextual.project.manager import missing_for_models
from llama_index_contextual.readers.files import is_url
from llama_index_contextual.search.cross_encoders import FASTEMBED

LOCKS = Path("/proc/locks")
"""File in which Linux lists the locks that processes hold; other systems do not have it."""

LEAST_SPACE = 100_000_000
"""Free space below which a disk is reported as full, in bytes."""


def check_projects(root: Path, names: Sequence[str], *, online: bool) -> Iterator[Check]:
    """Check the projects folder and the projects in it.

    Args:
        root: The projects folder.
        names: Names of the projects to check; all if empty.
        online: Whether to contact servers on other machines, and to load models that may be downloaded.

    Raises:
        ProjectNotFoundError: There is no project with one of the names.
    """
    directories = [project_file.existing_project(root, name) for name in names or project_file.project_names(root)]
    if not root.is_dir():
        yield Check("Projects folder", f"{root} does not exist yet")
        return
    yield Check("Projects folder", f"{root}: {pluralize(len(directories), 'project')}")
    for folder in (root, *directories):
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Check("Projects folder", f"{folder} is read-only", f"chmod u+rwx {quote_word(str(folder))}")
    for directory in directories:
        yield from _project(directory, online=online)


def _project(directory: Path, *, online: bool) -> Iterator[Check]:
    name, scratch, writer = directory.name, project_file.scratch_directory(directory), _writer(directory)
    if writer is not None:
        yield Check(name, f"process {writer} is writing to it")
    if scratch.exists() and _writer(scratch) is None:
        yield Check(name, f"{scratch.name} {LEFTOVER}", _command(directory, "verify", "--repair"), harmless=True)
    report = verify_project(directory, quick=True)
    for problem in report.problems:
        if writer is None or problem.message != LEFTOVER:
            yield Check(name, f"{problem.file} {problem.message}", problem.remedy, problem.harmless)
    if not report.sound:
        return  # a damaged project may have no settings, and no version
    try:
        config = with_environment(project_file.read_config(directory), os.environ)
        yield from _version(directory, config)
        yield from _models(ProjectState(directory, config), online=online)
    except ConfigurationError as error:
        yield Check(name, error.problem, _remedy(directory, error))


def _writer(directory: Path) -> str | None:
    """Return the id of the process that holds the lock of a directory, or None; a dead process holds no lock."""
    lock = directory / project_file.LOCK_FILE
    if not (lock.exists() and LOCKS.exists()):
        return None
    match = re.search(rf"^\d+: FLOCK .* (\d+) \S+:{lock.stat().st_ino} ", LOCKS.read_text(), re.MULTILINE)
    return None if match is None else match[1]


def _version(directory: Path, config: ProjectConfig) -> Iterator[Check]:
    """Check the live version against the free disk space, the settings and the files of its documents."""
    name, live = directory.name, current_name(directory)
    if live is None:
        yield Check(name, "nothing has been ingested yet")
        return
    with closing(OpenVersion(version_directory(directory, live))) as version:
        manifest, records = version.manifest, version.records
    free, least = files.free_bytes(directory), max(manifest.size, LEAST_SPACE)
    counts = f"{pluralize(manifest.documents, 'document')}, {pluralize(manifest.chunks, 'chunk')}"
    yield Check(name, f"{live} is live: {counts}, {manifest.size / 1e6:,.1f} MB; {free / 1e9:,.1f} GB are free")
    if free < least:
        message = f"the disk is full: {free / 1e6:,.1f} MB are free, the next version may need {least / 1e6:,.1f} MB"
        yield Check(name, message, _command(directory, "forget"))
    if problem := unknown_languages(manifest.embed_model, manifest.languages):
        message = f"{problem}: their passages are found mostly by their words; use a multilingual model and rebuild"
        yield Check(name, message, _command(directory, "configure", f"embed_model={MULTILINGUAL}"), harmless=True)
    if changed := config.rebuild_fields(ProjectConfig(**manifest.config)):
        message = f"{live} was built with other settings ({', '.join(changed)})"
        yield Check(name, message, _command(directory, "rebuild"), harmless=True)
    ids_by_source: dict[Path, list[str]] = {}
    for record in records:
        if record.path is not None and not is_url(record.path) and not Path(record.path).is_file():
            ids_by_source.setdefault(input_of(record), []).append(record.doc_id)
    for source, ids in ids_by_source.items():
        sync = f"mkdir -p {quote_word(str(source))} && {_command(directory, 'sync', str(source), '--allow-empty')}"
        command = sync if "/" in ids[0] else _command(directory, "remove", *ids)
        message = f"files of {pluralize(len(ids), 'document')} are missing in {source}, such as {ids[0]}"
        yield Check(name, f"{message}: restore them, or remove the documents", command, harmless=True)


# ---- models ----------------------------------------------------------------------------------------------------------


def _models(state: ProjectState, *, online: bool) -> Iterator[Check]:
    """Check the packages, keys, files and servers of the models in the settings."""
    config, name = state.config, state.name
    record = state.recorded_model  # it was passed as an object instead of the model in the settings
    for missing in missing_for_models(config, objects=() if record is None else ("embed_model",)):
        yield Check(name, missing, _remedy(state.directory, ModelError(missing)))
    for useless in settings_without_effect(config):
        yield Check(name, useless, _command(state.directory, "settings"), harmless=True)
    for llm in dict.fromkeys((config.llm, config.answer_llm)):
        if llm is not None and missing_for(llm, setting="llm") is None:
            yield from _server(name, llm, load_llm(llm), online=online)
    rerank = config.rerank or SPOTLIGHT
    extra, package = ("fastembed",) * 2 if rerank.startswith(FASTEMBED) else ("rerank", "sentence_transformers")
    if rerank.partition(":")[0] not in (SPOTLIGHT, AUTO, "llm") and find_spec(package) is None:
        yield Check(name, f"the reranker {rerank!r} needs {package}", f'pip install "{PROGRAM}[{extra}]"')
    embedding = state.embed_model_name
    if embedding is None:
        return
    if record is not None and not is_creatable(embedding):
        yield Check(name, f"{embedding} was passed as an object: in Python, pass it to load; commands cannot create it")
    elif (problem := missing_for(embedding, setting="embed_model")) is not None:
        if record is not None:
            yield Check(name, problem, _remedy(state.directory, ModelError(problem)))
    elif online or not (record or _is_on_hub(embedding)):
        yield from _server(name, embedding, state.embed_model, online=online)
    else:
        yield Check(name, f"{embedding} is loaded only with --online, because it may have to be downloaded or called")


def _is_on_hub(embedding: str) -> bool:
    """Return whether an embedding model may have to be downloaded."""
    return is_in_process(embedding) and model_folder(embedding.partition(":")[2], setting="embed_model") is None


def _server(place: str, name: str, model: BaseEmbedding | LLM, *, online: bool) -> Iterator[Check]:
    """Check that the server of a loaded model answers and, for OpenAI's protocol, accepts the key."""
    address = (address_of(model) or "").rstrip("/")
    if not address or not (online or is_loopback(urlsplit(address).hostname or "")):
        yield Check(place, f"{name} can be loaded")
        return
    is_openai = name.startswith("openai")
    url = f"{address}/models" if is_openai else address
    headers = {"Authorization": f"Bearer {getattr(model, 'api_key', None)}"} if is_openai else {}
    try:
        refuses = httpx.get(url, headers=headers, timeout=3.0).status_code in (401, 403) and is_openai
    except httpx.HTTPError as error:
        start = "ollama serve" if name.startswith("ollama:") else f"curl {quote_word(url)}"
        yield Check(place, f"{name}: {address} does not answer ({error}): start it, or correct the address", start)
        return
    command = _set_key("OPENAI_API_KEY") if refuses else None
    yield Check(place, f"{name}: {address} {'refuses the key' if refuses else 'answers'}", command)


# ---- commands --------------------------------------------------------------------------------------------------------


def _command(directory: Path, *words: str) -> str:
    return command_for(directory, words[0], *map(quote_word, words[1:]))


def _set_key(variable: str) -> str:
    """Return a command that asks for a key without showing it, and adds it to the file `.env`."""
    return f'read -rsp "{variable}: " KEY && echo "{variable}=$KEY" >> .env'


def _remedy(directory: Path, error: ConfigurationError) -> str:
    """Return the command in an error message, or the command that lists the settings if there is none."""
    advice = f"{error.problem} {error.remedy.command_line if error.remedy else ''}"
    if install := re.search(r'pip install [\w\-" \[\]]*[\w"]', advice):
        return install[0]
    if key := re.search(r"needs (\w+), which is not set", advice):
        return _set_key(key[1])
    command = re.search(rf"`{PROGRAM} (\w+) {{project}}([^`]*)`", advice)
    return _command(directory, *([command[1], *command[2].split()] if command else ["settings"]))
