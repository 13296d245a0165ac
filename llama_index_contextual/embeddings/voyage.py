"""Call Voyage's contextual embedding models, such as voyage-context-3, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, SecretStr

from llama_index_contextual._utils.calls import ProviderError, retry_after, without_secrets
from llama_index_contextual._utils.redaction import watch
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.embeddings.replies import as_numbers, in_order, note_call, report_usage, tokens_of
from llama_index_contextual.errors import ModelError, Remedy

KEY = "VOYAGE_API_KEY"
_MARGIN = 1.2


class VoyageContextualEmbedding(ContextualEmbedding):
    """Contextual embedding model from Voyage, such as voyage-context-3 or voyage-context-4.

    The limits are taken from Voyage's API reference: at most 1,000 lists, 16,000 chunks and 120,000 tokens per request,
    and 32,000 tokens per list. According to Voyage's guide, requests without automatic chunking must not exceed 32,000
    tokens in total, so this limit is the default. Tokens are counted with OpenAI's tokenizer plus a margin of 20 %,
    because Voyage's tokenizer would have to be downloaded.

    This class does not retry failed requests, but a project does.

    Args:
        model_name: Name of the model.
        dimensions: Length of the vectors; None for the model's default, 1,024.
        api_key: API key; None to use the VOYAGE_API_KEY environment variable.
        api_base: Address of the API.
        timeout: Timeout of a request in seconds.
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
    api_base: str = "https://api.voyageai.com/v1"
    timeout: float = Field(default=60.0, gt=0)
    max_tokens_per_request: int = Field(default=32_000, gt=0, le=120_000)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "VoyageContextualEmbedding"

    def count_tokens(self, text: str) -> int:
        """Return an upper bound on the number of tokens in a text."""
        return int(_MARGIN * super().count_tokens(text)) + 1

    def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
        return self._send(documents, "document")

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._send([[query]], "query")[0][0]

    def _send(self, inputs: list[list[str]], input_type: str) -> list[list[list[float]]]:
        """Send one request and return the vectors in the order of the inputs.

        Raises:
            ModelError: The key is missing, or the answer does not have the expected format.
        """
        watch(self)
        body: dict[str, Any] = {"inputs": inputs, "model": self.model_name, "input_type": input_type}
        if self.dimensions is not None:
            body["output_dimension"] = self.dimensions
        note_call()
        answer = without_secrets(lambda: self._post(body))
        report_usage(tokens_of(answer))
        try:
            lists = [item["data"] for item in self._in_order(answer["data"], inputs)]
            return [
                [as_numbers(item["embedding"]) for item in self._in_order(items, texts)]
                for items, texts in zip(lists, inputs, strict=True)
            ]
        except (KeyError, TypeError) as error:
            raise ModelError(
                f"The answer for {self.model_name!r} is not that of Voyage's API ({type(error).__name__}: {error}): run"
                f" the same call again, and check api_base.",
                setting="embed_model",
            ) from error

    def _in_order(self, items: list[dict[str, Any]], inputs: Sequence[object]) -> list[dict[str, Any]]:
        return in_order(items, lambda item: item["index"], expected=len(inputs), name=self.model_name)

    def _post(self, body: dict[str, Any]) -> Any:
        """Send a request with the given body and return the parsed body of the response.

        Raises:
            ProviderError: The API returned an error.
            ValueError: The body is not JSON; the connection may have been interrupted.
        """
        import httpx

        headers = {"Authorization": f"Bearer {self._key()}"}
        url = f"{self.api_base.rstrip('/')}/contextualizedembeddings"
        try:
            response = httpx.post(url, json=body, headers=headers, timeout=self.timeout)
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            message = f"HTTP {status}: {error.response.text}"
            raise ProviderError(message, status_code=status, retry_after=retry_after(error)) from error
        except httpx.TimeoutException as error:
            raise TimeoutError(f"no answer within {self.timeout:g} s") from error
        return response.json()

    def _key(self) -> str:
        key = (self.api_key.get_secret_value() if self.api_key is not None else os.environ.get(KEY, "")).strip()
        if not key:
            raise ModelError(
                f"{self.model_name!r} needs {KEY}, which is not set",
                remedy=Remedy("set it, or pass api_key=", "set it in the environment or in a file `.env`"),
            )
        return key
