"""Cross-encoder models from sentence-transformers or fastembed (ONNX), and the best of those on this machine.

Code that comes with a model is never run. A model that is on this machine is loaded without using the network.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import model_folder

FASTEMBED = "fastembed:"
"""Prefix of the names of cross-encoders that fastembed runs."""

# Cross-encoders for `rerank="auto"`, best first; the value is True if the model reads languages other than English.
_TORCH_MODELS = {
    "BAAI/bge-reranker-v2-m3": True,
    "Alibaba-NLP/gte-reranker-modernbert-base": False,
    "BAAI/bge-reranker-large": False,
    "BAAI/bge-reranker-base": False,
    "cross-encoder/ms-marco-MiniLM-L12-v2": False,
    "cross-encoder/ms-marco-MiniLM-L-12-v2": False,  # its former name
    "cross-encoder/ms-marco-MiniLM-L6-v2": False,
    "cross-encoder/ms-marco-MiniLM-L-6-v2": False,
    "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1": True,
}
_ONNX_MODELS = {
    "BAAI/bge-reranker-v2-m3": True,
    "BAAI/bge-reranker-v2-m3-int8": True,
    "BAAI/bge-reranker-base": False,
    "Xenova/ms-marco-MiniLM-L-12-v2": False,
    "Xenova/ms-marco-MiniLM-L-6-v2": False,
    "jinaai/jina-reranker-v1-turbo-en": False,
    "jinaai/jina-reranker-v1-tiny-en": False,
}
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_DEFAULT_LENGTH = 512
_NO_LIMIT = 1_000_000  # a tokenizer without a limit reports a length of 10**30
_HUB_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class CrossEncoderModel:
    """A loaded cross-encoder.

    Attributes:
        device: Device on which the model runs, such as "cpu" or "cuda:0", or None if it is unknown.
        length: Maximum number of tokens of a question and a passage, including special tokens.
        special_tokens: Number of special tokens that are added to a question and a passage.
        is_probabilistic: Whether the model is configured to return probabilities. The outputs of other models are
            intended only for sorting.
        spans: Function that returns the start and end offset of each token in a text.
        predict: Function that returns the logit of each pair of a question and a passage. Its second argument is the
            number of pairs in a batch.
    """

    device: str | None
    length: int
    special_tokens: int
    is_probabilistic: bool
    spans: Callable[[str], Sequence[tuple[int, int]]]
    predict: Callable[[Sequence[tuple[str, str]], int], ArrayLike]


def load_cross_encoder(name: str, device: str | None = None) -> CrossEncoderModel:
    """Load a cross-encoder, and download it if it is not on this machine.

    Args:
        name: Name on the Hugging Face hub, or a folder; the prefix `fastembed:` selects fastembed.
        device: Device such as "cpu" or "cuda"; None lets the library choose.

    Raises:
        ModelError: The package is not installed, or the model cannot be loaded, downloaded or used.
    """
    is_onnx = name.startswith(FASTEMBED)
    folder = model_folder(name.removeprefix(FASTEMBED), setting="rerank")
    path = name if folder is None else f"{FASTEMBED if is_onnx else ''}{folder}"
    try:
        return _load_onnx(path, device) if is_onnx else _load_torch(path, device)
    except ModelError:
        raise
    except ImportError as error:
        package, extra = ("fastembed", "fastembed") if is_onnx else ("sentence-transformers", "rerank")
        raise ModelError(
            f'The reranker {name!r} needs {package}: pip install "llama-index-contextual[{extra}]"', setting="rerank"
        ) from error
    except Exception as error:  # libraries raise different errors for damaged weights or an unknown name
        raise ModelError(
            f"The reranker {name!r} cannot be loaded ({_reason(error)}): if its download was interrupted, delete its"
            f" files in the cache; otherwise, name a cross-encoder of the Hugging Face hub or the folder of one in the"
            f" `rerank` setting, or 'llm'.",
            setting="rerank",
        ) from error


def unusable(name: str, why: str) -> ModelError:
    """Return the error for a model that is not a usable cross-encoder."""
    return ModelError(
        f"The reranker {name!r} {why}: choose another cross-encoder, or 'llm' for the `rerank` setting.",
        setting="rerank",
    )


def is_local(name: str) -> bool:
    """Return whether a cross-encoder is in a folder or cache of this machine; `name` as in `load_cross_encoder`."""
    if Path(name.removeprefix(FASTEMBED)).expanduser().is_dir():
        return True
    if not name.startswith(FASTEMBED):
        cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        return _is_cached(name, "config.json", cache) and any(_is_cached(name, file, cache) for file in _WEIGHTS)
    repository, files = _onnx_files(name)
    return bool(files) and all(_is_cached(repository, file, _onnx_cache()) for file in files)


def local_models(preferred: str, language: str) -> Iterator[tuple[str, str]]:
    """Yield the names of cross-encoders on this machine, best first, each with the place where it was found.

    Only models whose package is installed are included.

    Args:
        preferred: Name or folder of the model to yield first, or an empty string.
        language: Language of the documents. For languages other than English, known models that read only English are
            omitted.
    """
    has_torch, has_onnx = (find_spec(package) is not None for package in ("sentence_transformers", "fastembed"))
    has_package = has_onnx if preferred.startswith(FASTEMBED) else has_torch
    if preferred and has_package and is_local(preferred):
        yield preferred, "named in the `rerank` setting"
    fits = [name for name, any_language in _TORCH_MODELS.items() if any_language or language == "english"]
    for name in fits if has_torch else ():
        if is_local(name):
            yield name, "in the Hugging Face cache"
    fits = [name for name, any_language in _ONNX_MODELS.items() if any_language or language == "english"]
    for name in fits if has_onnx else ():
        if is_local(f"{FASTEMBED}{name}"):
            yield f"{FASTEMBED}{name}", "in the cache of fastembed"


def _load_torch(name: str, device: str | None) -> CrossEncoderModel:
    """Load a cross-encoder with sentence-transformers."""
    from sentence_transformers import CrossEncoder
    from torch.nn import Identity

    if not (local := is_local(name)):
        _require_hub(name, name)
    model = CrossEncoder(name, device=device, trust_remote_code=False, local_files_only=local)
    tokenizer = model.tokenizer
    architectures = getattr(getattr(model, "config", None), "architectures", None) or ("ForSequenceClassification",)
    if not any("ForSequenceClassification" in kind or "ForCausalLM" in kind for kind in architectures):
        raise unusable(name, "has no trained classifier, so its scores would be random")
    if not getattr(tokenizer, "is_fast", False):
        raise unusable(name, "has no fast tokenizer (tokenizer.json), which is needed to divide long passages")
    limits = (getattr(model, "max_seq_length", None), getattr(tokenizer, "model_max_length", None))
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT]

    def spans(text: str) -> Sequence[tuple[int, int]]:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets: Sequence[tuple[int, int]] = encoded["offset_mapping"]
        return offsets

    def predict(pairs: Sequence[tuple[str, str]], batch_size: int) -> ArrayLike:
        # Use logits instead of the model's own activation, because a float32 sigmoid is 1 for any input above 17.
        identity = Identity()
        output: ArrayLike = model.predict(
            list(pairs), batch_size=batch_size, activation_fn=identity, show_progress_bar=False
        )
        return output

    return CrossEncoderModel(
        device=str(where) if (where := getattr(model, "device", None)) is not None else None,
        length=min(known, default=_DEFAULT_LENGTH),
        special_tokens=tokenizer.num_special_tokens_to_add(pair=True),
        is_probabilistic=type(getattr(model, "activation_fn", None)).__name__ != "Identity",
        spans=spans,
        predict=predict,
    )


# ---- fastembed -------------------------------------------------------------------------------------------------------


def _load_onnx(name: str, device: str | None) -> CrossEncoderModel:
    """Load a cross-encoder with fastembed."""
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    from llama_index_contextual.embeddings.fastembed import onnx_file

    model = name.removeprefix(FASTEMBED)
    options: dict[str, Any] = {"cache_dir": _onnx_cache()}
    if device is not None:
        options["providers"] = [f"{device.partition(':')[0].upper()}ExecutionProvider"]
    if (folder := Path(model)).is_dir():
        if (path := onnx_file(folder)) is None:
            raise unusable(name, "is a folder without a file model.onnx")
        model, options["specific_model_path"] = str(path), str(folder)
        if not _onnx_files(model)[1]:  # fastembed does not load a model from a folder unless it is registered
            file = path.relative_to(folder).as_posix()
            TextCrossEncoder.add_custom_model(model=model, sources=ModelSource(hf=str(folder)), model_file=file)
    elif is_local(name):
        options["local_files_only"] = True  # otherwise, fastembed replaces files that it regards as damaged
    else:
        repository, files = _onnx_files(name)
        if not files:
            known = ", ".join(each["model"] for each in TextCrossEncoder.list_supported_models())
            raise unusable(name, f"is neither a folder nor one of the cross-encoders of fastembed ({known})")
        _require_hub(name, repository)
    encoder: Any = TextCrossEncoder(model, **options).model
    values = encoder.model.get_outputs()[0].shape[-1]
    if isinstance(values, int) and values != 1:
        raise unusable(name, f"returns {values} values for a passage instead of one")
    tokenizer = type(encoder.tokenizer).from_str(encoder.tokenizer.to_str())
    length = tokenizer.truncation["max_length"]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = encoder._model_dir / "config.json"
    return CrossEncoderModel(
        device=encoder.model.get_providers()[0].removesuffix("ExecutionProvider").lower(),
        length=min(length, _NO_LIMIT),
        special_tokens=tokenizer.num_special_tokens_to_add(True),
        is_probabilistic=not config.is_file() or _has_sigmoid(json.loads(config.read_bytes())),
        spans=lambda text: tokenizer.encode(text, add_special_tokens=False).offsets,
        predict=partial(_predict_onnx, encoder),
    )


def _predict_onnx(encoder: Any, pairs: Sequence[tuple[str, str]], batch_size: int) -> ArrayLike:
    # Texts of similar length are in the same batch, so that little is padded.
    order = sorted(range(len(pairs)), key=lambda at: len(pairs[at][1]))
    logits = np.empty(len(pairs))
    logits[order] = list(encoder.rerank_pairs([pairs[at] for at in order], batch_size=batch_size))
    return logits


def _has_sigmoid(config: dict[str, Any]) -> bool:
    """Return whether a model's scores pass through a sigmoid, which sentence-transformers uses by default."""
    own = config.get("sentence_transformers") or {}
    activation = own.get("activation_fn") or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    return not str(activation).endswith("Identity")


def _onnx_files(name: str) -> tuple[str, list[str]]:
    """Return the repository and the files of a cross-encoder of fastembed; no files if fastembed does not know it."""
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    wanted = name.removeprefix(FASTEMBED).lower()
    for model in TextCrossEncoder.list_supported_models():
        if model["model"].lower() == wanted:
            return model["sources"]["hf"], [model["model_file"], *model["additional_files"], "tokenizer.json"]
    return "", []


def _onnx_cache() -> str:
    return os.environ.get("FASTEMBED_CACHE_PATH") or os.path.join(tempfile.gettempdir(), "fastembed_cache")


# ---- the Hugging Face hub --------------------------------------------------------------------------------------------


def _is_cached(repository: str, file: str, cache: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(repository, file, cache_dir=cache), str)
    except ValueError:  # not a name on the hub, such as a folder that does not exist
        return False


def _require_hub(name: str, repository: str) -> None:
    """Check that the hub can be reached, because the libraries repeat failed requests for more than a minute."""
    from huggingface_hub import model_info

    try:
        model_info(repository, timeout=_HUB_SECONDS)
    except Exception as error:  # the type depends on the release of huggingface_hub
        if getattr(error, "response", None) is not None:
            return  # the library that loads the model reports what the hub replied
        raise ModelError(
            f"The reranker {name!r} is not on this machine and cannot be downloaded ({_reason(error)}): check the name"
            f" and the network, or name the folder of a cross-encoder in the `rerank` setting.",
            setting="rerank",
        ) from error


def _reason(error: Exception) -> str:
    return f"{error}".strip().partition("\n")[0].rstrip(".") or type(error).__name__
