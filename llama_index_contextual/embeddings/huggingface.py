"""Load sentence-transformers models by name or path, with the prompts that were used to train them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_index.core.utils import get_cache_dir
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from sentence_transformers.util import load_file_path

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.embeddings.windows import known_model
from llama_index_contextual.models import model_folder

# Tokenizers from transformers raise "Already borrowed" if two threads share a tokenizer; PyTorch has its own threads.
_ONE_AT_A_TIME = Lock()

_QUERY_PROMPTS = ("query", "retrieval.query", "s2p_query")
_PASSAGE_PROMPTS = ("document", "passage", "corpus", "text", "retrieval.passage")


class TransformerEmbedding(HuggingFaceEmbedding):  # type: ignore[misc]  # the package ships no types
    """LlamaIndex's `HuggingFaceEmbedding` with the prompts that were used to train the model.

    This class uses the prompts in the model's configuration, whereas LlamaIndex's class replaces them with empty
    prompts. If the configuration has no prompts, the prompts in `KNOWN_MODELS` are used.

    Requires the `huggingface` extra (`pip install "llama-index-contextual[huggingface]"`).

    Args:
        model_name: Name on huggingface.co, or the path of a folder, which may start with `~` for the home folder.
        embed_batch_size: Number of texts per batch.
        **options: Other arguments for `HuggingFaceEmbedding`.

    Raises:
        ModelError: The path does not exist.
    """

    def __init__(self, model_name: str, *, embed_batch_size: int = 32, **options: Any) -> None:
        properties = known_model(model_name)
        folder = str(path := model_folder(model_name, setting="embed_model") or model_name)
        options.setdefault("local_files_only", path != model_name)
        options.setdefault("cache_folder", get_cache_dir())
        super().__init__(
            folder,
            embed_batch_size=embed_batch_size,
            query_instruction=properties.query if properties else None,
            text_instruction=properties.passage if properties else None,
            **options,
        )
        self.model_name = model_name
        prompts = _own_prompts(folder, options["cache_folder"])
        query, passage = _first(prompts, _QUERY_PROMPTS), _first(prompts, _PASSAGE_PROMPTS)
        if query or passage:
            self._model.prompts = {**self._model.prompts, "query": query, "text": passage}
        self.query_instruction, self.text_instruction = self._model.prompts["query"], self._model.prompts["text"]

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "TransformerEmbedding"

    def _embed(self, inputs: list[Any], prompt_name: str | None = None) -> list[list[float]]:
        """Embed inputs without the retries of the base class, which are meant for network calls."""
        with _ONE_AT_A_TIME:
            vectors = self._model.encode(
                inputs,
                batch_size=self.embed_batch_size,
                prompt_name=prompt_name,
                normalize_embeddings=self.normalize,
                show_progress_bar=False,
            )
        rows: list[list[float]] = vectors.tolist()
        return rows


def _own_prompts(model: str, cache_folder: str) -> Mapping[str, str]:
    """Return the named prompts in the configuration of a model that has been loaded."""
    path = load_file_path(
        model, "config_sentence_transformers.json", token=None, cache_folder=cache_folder, local_files_only=True
    )
    config = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: prompt for name, prompt in (config.get("prompts") or {}).items() if isinstance(prompt, str)}


def _first(prompts: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((prompts[name] for name in names if prompts.get(name)), "")
