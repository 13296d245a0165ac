"""Remove everything from disk that the live version does not contain, including rows of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata as keys
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, damaged_ledgers
from llama_index_contextual.index.manifest import PARTS
from llama_index_contextual.index.project_file import project_ledger, remove_scratch
from llama_index_contextual.index.qdrant import forget_vectors
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import VERSIONS, remove_unused_parts, remove_version, version_names


@dataclass(frozen=True, kw_only=True)
class ForgetReport:
    """Report of what `forget` removed, or would remove in a dry run.

    Attributes:
        versions: Names of the versions.
        contexts: Number of contexts in the ledger.
        embeddings: Number of vectors in the ledger.
        batched_requests: Number of requests in running batches, whose replies will not be fetched.
    """

    versions: Sequence[str]
    contexts: int
    embeddings: int
    batched_requests: int = 0


def forget(project_dir: Path, live: OpenVersion, *, dry_run: bool = False) -> ForgetReport:
    """Remove all versions but the live one, and all ledger rows and file paths that it does not use.

    A row is kept if it is the context or the embedding of a live chunk. Earlier states of a document and contexts
    written with other settings are removed. Running batches are abandoned, because their replies would bring removed
    contexts back. If it is interrupted, it can be run again.

    Args:
        project_dir: Directory of the project, whose write lock must be held.
        live: The live version.
        dry_run: Whether to only return what would be removed.

    Raises:
        ProjectLockedError: Another process is comparing variants of the documents.
    """
    others = [name for name in version_names(project_dir) if name != live.name]
    path = project_dir / LEDGER_FILE
    if not dry_run:
        remove_scratch(project_dir)
        for name in others:
            remove_version(project_dir, name)
        remove_unused_parts(project_dir, required=True)
        forget_vectors(project_dir, live.name, is_remote=live.is_remote)
        # Even if nothing was removed: an earlier run may have been interrupted before it synced.
        for directory in filter(Path.is_dir, (project_dir / VERSIONS, project_dir / PARTS)):
            files.sync_directory(directory)
        for damaged in damaged_ledgers(project_dir):
            files.remove(damaged)
    if not path.exists():
        if not dry_run:
            files.sync_directory(project_dir)
        return ForgetReport(versions=others, contexts=0, embeddings=0)
    contexts: set[str] = set()
    documents: dict[str, list[tuple[int, str]]] = {}
    for node in live.docstore.iterate():
        contexts.add(keys.context_parts(node.metadata)[1])
        entry = (getattr(node, "start_char_idx", None) or 0, node.get_content(metadata_mode=MetadataMode.EMBED))
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(entry)
    texts = [[text for _, text in sorted(chunks, key=itemgetter(0))] for chunks in documents.values()]
    new = path.with_name(f"{LEDGER_FILE}{files.NEW}")
    with project_ledger(project_dir) as ledger:
        batched = ledger.info().batched_requests
        removed = ledger.keep_only(contexts, texts, dry_run=dry_run)
        if not dry_run:
            ledger.copy_to(new)
    if not dry_run:
        files.rename(new, path)
    return ForgetReport(versions=others, contexts=removed[0], embeddings=removed[1], batched_requests=batched)
