"""Load fastembed models by name; these models run on ONNX Runtime instead of PyTorch.

LlamaIndex's own class for fastembed does not add prefixes, and its package cannot be installed with Python 3.13.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from pydantic import Field, PrivateAttr

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.embeddings.contextual import BatchEmbedding
from llama_index_contextual.embeddings.windows import known_model
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import model_folder

# Hugging Face tokenizers raise "Already borrowed" if two threads share a tokenizer; ONNX Runtime has its own threads.
_ONE_AT_A_TIME = Lock()


class OnnxEmbedding(BatchEmbedding):
    """Embedding model from fastembed, with the prefixes from `KNOWN_MODELS`, which fastembed does not add.

    A model is downloaded on first use, either to the folder given by the `FASTEMBED_CACHE_PATH` environment variable or
    to a temporary folder.

    Requires the `fastembed` extra (`pip install "llama-index-contextual[fastembed]"`).

    Args:
        model_name: Name of a model that is listed by `fastembed.TextEmbedding.list_supported_models()` or was
            registered with `add_custom_model`, or the path of a folder with a model in ONNX format, which is loaded
            without a network.
        embed_batch_size: Number of texts per batch.
        **options: Other arguments for `fastembed.TextEmbedding`, such as `threads` or `specific_model_path`.

    Raises:
        ModelError: The path does not exist, or the folder contains no model.
    """

    embed_batch_size: int = Field(default=32, gt=0, le=2048)
    query_instruction: str = ""
    text_instruction: str = ""

    _model: TextEmbedding = PrivateAttr()

    def __init__(self, model_name: str, *, embed_batch_size: int = 32, **options: Any) -> None:
        super().__init__(model_name=model_name, embed_batch_size=embed_batch_size)
        if properties := known_model(model_name):
            self.query_instruction, self.text_instruction = properties.query, properties.passage
        if (folder := model_folder(model_name, setting="embed_model")) is not None:
            model_name, options["specific_model_path"] = _registered(folder), str(folder)
        self._model = TextEmbedding(model_name=model_name, **options)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "OnnxEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        inputs = [f"{self.text_instruction}{text}" for text in texts]
        with _ONE_AT_A_TIME:
            # `passage_embed` and `query_embed` select the task for models with several tasks, such as Jina v3.
            vectors = list(self._model.passage_embed(inputs, batch_size=self.embed_batch_size))
        return [vector.tolist() for vector in vectors]

    def _get_query_embedding(self, query: str) -> list[float]:
        with _ONE_AT_A_TIME:
            vectors = list(self._model.query_embed([f"{self.query_instruction}{query}"]))
        row: list[float] = vectors[0].tolist()
        return row


def onnx_file(folder: Path) -> Path | None:
    """Return the ONNX file of the model in a folder, or None."""
    return next((path for name in ("model.onnx", "onnx/model.onnx", "**/*.onnx") for path in folder.glob(name)), None)


def _registered(folder: Path) -> str:
    """Register the model in a folder with fastembed, which does not load other models, and return its name.

    The pooling method is read from `1_Pooling/config.json`, which sentence-transformers writes. Without this file, mean
    pooling is used.
    """
    name, file, pooling = str(folder.resolve()), onnx_file(folder), folder / "1_Pooling" / "config.json"
    if file is None:
        raise ModelError(f"The folder {name} contains no file model.onnx.", setting="embed_model")
    if name not in (model["model"] for model in TextEmbedding.list_supported_models()):
        is_cls = pooling.is_file() and json.loads(pooling.read_bytes()).get("pooling_mode_cls_token")
        kind, source = PoolingType.CLS if is_cls else PoolingType.MEAN, ModelSource(hf=name)
        TextEmbedding.add_custom_model(name, kind, True, source, dim=0, model_file=file.relative_to(folder).as_posix())
    return name
