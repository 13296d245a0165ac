"""Voyage's contextual embedding models, such as voyage-context-3, over HTTP."""

from __future__ import annotations

import base64
import os
import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from pydantic import Field, SecretStr

from llama_index_contextual._utils.calls import ProviderError, awithout_secrets, retry_after, without_secrets
from llama_index_contextual._utils.redaction import watch
from llama_index_contextual.embeddings.batching import require_shape
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import ModelError, Remedy

if TYPE_CHECKING:
    import httpx

KEY = "VOYAGE_API_KEY"
_OF_VOYAGE, _OF_MONGODB = "https://api.voyageai.com/v1", "https://ai.mongodb.com/v1"
_PATH = "contextualizedembeddings"
_MARGIN = 1.2
_UNKNOWN_MODEL = re.compile(r"model\b.*\bnot (?:supported|found|exist)", re.IGNORECASE | re.DOTALL)


class VoyageContextualEmbedding(ContextualEmbedding):
    """Embed the chunks of a document together with voyage-context-3, voyage-context-4 or a later model.

    The limits are taken from Voyage's reference: at most 1,000 lists, 16,000 chunks and 120,000 tokens per request, and
    32,000 tokens per list. According to its guide, requests without automatic chunking must not exceed 32,000 tokens in
    total, so this is the default. Tokens are counted with OpenAI's tokenizer, because Voyage's must be downloaded, and
    a margin of 20 % is added for the limits.

    This class sends each request once; a project retries failed requests.

    Args:
        model_name: Name of the model.
        dimensions: Length of the vectors; None for the model's default, 1,024.
        api_key: API key; None for the environment variable VOYAGE_API_KEY.
        api_base: Address of the API; None for Voyage's, or MongoDB's for a key that MongoDB issued.
        timeout: Timeout of a request in seconds.
        reuse_client: Whether to keep the HTTP client, for use in a single event loop.
        max_tokens_per_request: Maximum number of tokens in a request.

    Sources: https://docs.voyageai.com/reference/contextualized-embeddings-api and
    https://docs.voyageai.com/docs/contextualized-chunk-embeddings

    Example:
        >>> model = VoyageContextualEmbedding(model_name="voyage-context-3", dimensions=512)
        >>> vectors = model.get_document_embeddings([["Revenue grew.", "It fell in May."]])  # doctest: +SKIP
    """

    model_name: str = "voyage-context-3"
    dimensions: Literal[256, 512, 1024, 2048] | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    api_base: str | None = None
    timeout: float = Field(default=60.0, gt=0)
    reuse_client: bool = False
    max_tokens_per_request: int = Field(default=32_000, gt=0, le=120_000)

    _client: httpx.Client | None = PrivateAttr(default=None)
    _aclient: httpx.AsyncClient | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "VoyageContextualEmbedding"

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if "context" not in self.model_name.lower():
            raise ModelError(
                f"{self.model_name!r} is not a contextual embedding model: use one such as voyage-context-3",
                setting="embed_model",
                remedy=Remedy(
                    "or pass embed_model=VoyageEmbedding(...) of the package llama-index-embeddings-voyageai", ""
                ),
            )

    def count_tokens(self, text: str) -> int:
        """Return an upper bound on the number of tokens in a text."""
        return int(_MARGIN * super().count_tokens(text)) + 1

    # ---- LlamaIndex ------------------------------------------------------------------------------------------------

    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        return self._send(documents, "document")

    async def _aget_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        return await self._asend(documents, "document")

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._send([[query]], "query")[0][0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._asend([[query]], "query"))[0][0]

    # ---- HTTP ------------------------------------------------------------------------------------------------------

    def _send(self, inputs: list[list[str]], input_type: str) -> list[list[list[float]]]:
        watch(self)
        answer = without_secrets(lambda: self._post(self._body(inputs, input_type)))
        return _vectors(answer, inputs, self.model_name)

    async def _asend(self, inputs: list[list[str]], input_type: str) -> list[list[list[float]]]:
        watch(self)
        answer = await awithout_secrets(lambda: self._apost(self._body(inputs, input_type)))
        return _vectors(answer, inputs, self.model_name)

    def _body(self, inputs: list[list[str]], input_type: str) -> dict[str, Any]:
        body = {"inputs": inputs, "model": self.model_name, "input_type": input_type, "encoding_format": "base64"}
        return body if self.dimensions is None else {**body, "output_dimension": self.dimensions}

    def _post(self, body: dict[str, Any]) -> Any:
        import httpx

        client = self._client or httpx.Client(**self._client_options())
        if self.reuse_client:
            self._client = client
        try:
            response = client.post(_PATH, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            if not self.reuse_client:
                client.close()
        return _checked(response)

    async def _apost(self, body: dict[str, Any]) -> Any:
        import httpx

        client = self._aclient or httpx.AsyncClient(**self._client_options())
        if self.reuse_client:
            self._aclient = client
        try:
            response = await client.post(_PATH, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            if not self.reuse_client:
                await client.aclose()
        return _checked(response)

    def _client_options(self) -> dict[str, Any]:
        key = (self.api_key.get_secret_value() if self.api_key is not None else os.environ.get(KEY, "")).strip()
        if not key:
            raise ModelError(
                f"{self.model_name!r} needs {KEY}, which is not set",
                remedy=Remedy("set it, or pass api_key=", "set it in the environment or in a file `.env`"),
            )
        base = self.api_base or (_OF_MONGODB if key.startswith("al-") else _OF_VOYAGE)
        return {"base_url": base, "headers": {"Authorization": f"Bearer {key}"}, "timeout": self.timeout}

    def _unreachable(self, error: httpx.TransportError) -> Exception:
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"no answer within {self.timeout:g} s")
        return ConnectionError(str(error) or type(error).__name__)


def _checked(response: httpx.Response) -> Any:
    """Return the body of a response.

    Raises:
        ProviderError: The response is an error.
        ValueError: The body is not JSON; the connection may have been interrupted.
    """
    if response.is_success:
        return response.json()
    import httpx

    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text
    text = f"HTTP {response.status_code}: {detail}"
    if response.status_code == 400 and "token" in text:
        text += " Use smaller chunks, or pass VoyageContextualEmbedding with a smaller max_tokens_per_document."
    raise ProviderError(
        text,
        status_code=response.status_code,
        code="model_not_found" if response.status_code == 400 and _UNKNOWN_MODEL.search(text) else None,
        retry_after=retry_after(httpx.HTTPStatusError(text, request=response.request, response=response)),
    )


def _vectors(answer: Any, inputs: list[list[str]], name: str) -> list[list[list[float]]]:
    """Return the vectors in an answer, in the order of the inputs.

    Raises:
        ModelError: The answer does not have this API's format, or does not contain one vector per text.
    """
    try:
        vectors = [
            [_vector(item["embedding"]) for item in _in_order(each["data"])] for each in _in_order(answer["data"])
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"The answer for {name!r} is not that of Voyage's API ({type(error).__name__}: {error}): run the same call"
            f" again, and check api_base.",
            setting="embed_model",
        ) from error
    require_shape(vectors, inputs, name=name)
    return vectors


def _in_order(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items sorted by index; the indices must be consecutive and start at 0."""
    by_index = sorted(items, key=lambda item: int(item["index"]))
    if [item["index"] for item in by_index] != list(range(len(items))):
        raise ValueError("the indices are not 0, 1, 2, …")
    return by_index


def _vector(embedding: str | list[float]) -> list[float]:
    if not isinstance(embedding, str):
        return embedding
    numbers: list[float] = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").tolist()
    return numbers
