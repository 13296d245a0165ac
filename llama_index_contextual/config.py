"""The settings of a project: typed, frozen, one sentence per field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from llama_index_contextual._utils.templates import check_template
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.retirement import default_llm

LOCAL = "local"
"""Name of the embedding model that needs no key and no network."""

Mode = Literal["semantic", "lexical", "hybrid"]
ContextKind = Literal["llm", "structural", "none"]
Fusion = Literal["rrf", "score"]
FaissIndex = Literal["auto", "flat", "rabitq"]

RETRIEVAL_FIELDS = frozenset(
    {
        "mode",
        "top_k",
        "candidates",
        "fusion",
        "semantic_weight",
        "lexical_weight",
        "document_weight",
        "sibling_weight",
        "rrf_k",
        "acronyms",
        "rerank",
        "rerank_candidates",
        "rerank_threshold",
        "keep_versions",
        "pdf_engine",
        "context_in_answer",
        "answer_temperature",
        "answer_tokens",
        "prices",
        "llm_concurrency",
        "call_timeout",
        "requests_per_minute",
        "tokens_per_minute",
        "service_tier",
        "chunks_per_call",
    }
)
"""Fields that can change without building a new version."""

FORMER_DEFAULTS: Mapping[str, Any] = {
    "fusion": "rrf",
    "semantic_weight": 0.5,
    "lexical_weight": 0.5,
    "llm": "openai:gpt-4.1",
}
"""Values of settings where a version or a project was recorded without them: what it was built with.

A default that changes is entered here with its former value, and so is a new setting whose default differs from what
was done before there was one: an index is never built or searched in two ways because the package was upgraded.
"""


class TokenPrice(BaseModel):
    """What a model costs, in dollars per million tokens.

    Example:
        >>> TokenPrice(input=2.0, cached=0.5, output=8.0).input
        2.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False, description="Tokens of the prompt.")
    cached: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Tokens from the provider's cache; None: as the others."
    )
    output: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="Tokens of the answer.")
    written: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Tokens written into that cache; None: as the others."
    )


class ProjectConfig(BaseModel):
    """The settings of a project, kept in its `project.json`.

    Raises:
        ConfigurationError: A value is out of range, two values contradict each other, or a name is unknown.

    Example:
        >>> ProjectConfig.local(chunk_size=512).chunk_size
        512
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pdf_engine: Literal["pypdf", "pdfium"] = Field(
        default="pypdf",
        description="What parses PDFs read from now on: `pypdf`, which knows columns and paragraphs, or `pdfium`, which"
        " is faster (extra `pdfium`).",
    )
    embed_model: str = Field(
        default="openai:text-embedding-3-small",
        description="Embedding model as provider:name, or `local` for WordLlama, which needs no key and no network.",
    )
    context: ContextKind = Field(
        default="llm",
        description="Who writes the context of a chunk: an LLM, the document's own structure, or nobody (plain RAG).",
    )
    llm: str = Field(
        default_factory=default_llm,
        description="LLM that writes contexts, as provider:name; the default of a new project is `openai:gpt-4.1`, and"
        " its successor from the day on which its provider ends it.",
    )
    context_prompt: str | None = Field(
        default=None, description="Prompt template for contexts; None is the published wording."
    )
    context_variables: dict[str, str] = Field(
        default_factory=dict, description="Values of further variables of the prompt template, such as a glossary."
    )
    chunks_per_call: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        default=1,
        description="Contexts asked for in one call, at most: 1 is the published method, more cost less; or `all` of a"
        " segment.",
    )
    llm_concurrency: int = Field(default=8, ge=1, le=512, description="Calls to the LLM in flight at the same time.")
    call_timeout: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a call to the LLM may take; None: 60, and 300 for a context by Ollama.",
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Calls to the LLM in a minute, at most; None follows its provider alone."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Tokens sent to the LLM in a minute, at most; None follows its provider alone."
    )
    service_tier: Literal["flex"] | None = Field(
        default=None, description="`flex` costs half and takes longer, where the LLM's provider has it."
    )
    prices: dict[str, TokenPrice] = Field(
        default_factory=dict,
        description="Dollars per million tokens (input, cached, output) by model as provider:name, where the price"
        " table does not know them or yours are others.",
    )
    context_in_answer: bool = Field(
        default=True, description="Whether the LLM that answers sees the context beside the text."
    )
    answer_temperature: float = Field(
        default=0.1, ge=0, le=2, description="Temperature at which the LLM answers, where it is made from its name."
    )
    answer_tokens: int = Field(
        default=8000, ge=1, description="Tokens of the passages that the LLM reads for an answer, at most."
    )
    faiss: bool = Field(default=True, description="Whether to build the semantic index.")
    bm25: bool = Field(default=True, description="Whether to build the lexical index.")
    segment_size: int = Field(default=8000, ge=1, description="Tokens of a segment, at most.")
    segment_overlap: int = Field(default=800, ge=0, description="Tokens that two neighbouring segments share, about.")
    chunk_size: int = Field(default=800, ge=1, description="Tokens of a chunk, at most.")
    chunk_overlap: int = Field(default=80, ge=0, description="Tokens that two neighbouring chunks share, about.")
    faiss_index: FaissIndex = Field(
        default="auto",
        description="Whether vectors are kept exact (`flat`), as RaBitQ codes with 16-bit refinement (`rabitq`: half"
        " the size, faster), or so where there are many and a probe on them finds recall@20 of at least 0.99 (`auto`).",
    )
    language: str = Field(default="english", description="Language of the Snowball stemmer, or `none`.")
    mode: Mode = Field(default="hybrid", description="Which indexes answer a query.")
    top_k: int = Field(default=20, ge=1, description="Results of a query.")
    candidates: int = Field(default=100, ge=1, description="Hits taken from each index before they are fused.")
    fusion: Fusion = Field(
        default="score",
        description="Fuse by reciprocal ranks (`rrf`), or by scores in units of their standard deviation (`score`).",
    )
    # Fitted for the local embedding, and best on the code set with a transformer as well (all-MiniLM-L6-v2; see
    # tests/benchmarks/transformer.py). `local` names its own values, so that each path can be fitted by itself.
    semantic_weight: float = Field(default=0.4, ge=0, description="Weight of the semantic ranking.")
    lexical_weight: float = Field(default=0.6, ge=0, description="Weight of the lexical ranking.")
    document_weight: float = Field(
        default=0.1,
        ge=0,
        description="Weight of the document that a chunk is of (BM25 over file name, title and opening) beside the two"
        " rankings, whose weights are scaled to a sum of 1.",
    )
    sibling_weight: float = Field(
        default=0.5,
        ge=0,
        description="How much of the score of its document's best chunk a chunk gains; without effect where documents"
        " are single chunks, or where there is one document.",
    )
    rrf_k: float = Field(default=10.0, gt=0, description="Constant of reciprocal rank fusion; 60 in the paper.")
    acronyms: bool = Field(
        default=False,
        description="Whether the lexical indexes are also asked for the long forms of a question's acronyms, as the"
        " documents explain them in brackets, and for the acronyms of its long forms.",
    )
    rerank: str | None = Field(
        default=None,
        description="Who looks again at the best hits: a cross-encoder by name, such as"
        " `cross-encoder/ms-marco-MiniLM-L-6-v2`, `llm` for the LLM, or nobody.",
    )
    rerank_candidates: int = Field(default=50, ge=1, description="Hits that the reranker looks at.")
    rerank_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="Hits that the reranker scores below it are left out."
    )
    keep_versions: int = Field(default=3, ge=2, description="Published versions that stay on disk for a rollback.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_sentence(error) from None
        if self.context_prompt is not None:
            check_template(self.context_prompt, self.context_variables)
        elif self.context_variables:
            raise ConfigurationError(
                "context_variables has no effect without a context_prompt that uses them.", setting="context_variables"
            )

    @classmethod
    def local(cls, **changes: Any) -> Self:
        """Return settings that need neither key nor network; `changes` override single fields.

        The embedding is weaker than a transformer's, so the lexical ranking weighs more.
        """
        defaults: dict[str, Any] = {
            "embed_model": "local",
            "context": "structural",
            "semantic_weight": 0.4,
            "lexical_weight": 0.6,
            "candidates": 200,
            "fusion": "score",
        }
        return cls(**{**defaults, **changes})

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> Self:
        """Return the settings that a version or a project was recorded with.

        A setting that the record lacks has the value that was in use then (`FORMER_DEFAULTS`), not a default that came
        later.
        """
        return cls(**{**FORMER_DEFAULTS, **settings})

    @field_validator("semantic_weight", "lexical_weight", "document_weight", "sibling_weight", "rrf_k")
    @classmethod
    def _finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return value

    @field_validator("language")
    @classmethod
    def _known_language(cls, value: str) -> str:
        import Stemmer

        known = [*Stemmer.algorithms(), "none"]
        if value not in known:
            raise ValueError(f"must be one of {', '.join(sorted(known))}")
        return value

    @field_validator("prices")
    @classmethod
    def _named_models(cls, value: dict[str, TokenPrice]) -> dict[str, TokenPrice]:
        for name in value:
            if ":" not in name and name != LOCAL:
                raise ValueError(f"{name!r} is not provider:name, as in the settings `llm` and `embed_model`")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.faiss or self.bm25):
            raise ValueError("faiss and bm25 are both off: leave at least one index on")
        for kind in ("segment", "chunk"):
            size, overlap = getattr(self, f"{kind}_size"), getattr(self, f"{kind}_overlap")
            if overlap >= size:
                raise ValueError(f"{kind}_overlap ({overlap}) must be smaller than {kind}_size ({size})")
        if self.chunk_size > self.segment_size:
            raise ValueError(f"chunk_size ({self.chunk_size}) must not exceed segment_size ({self.segment_size})")
        if self.semantic_weight + self.lexical_weight == 0:
            raise ValueError("semantic_weight and lexical_weight are both 0: give at least one index some weight")
        return self

    def changed(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated."""
        return type(self)(**{**self.model_dump(), **changes})

    def rebuild_fields(self, other: ProjectConfig) -> list[str]:
        """Return the fields that differ from `other` and need a new version before they have an effect."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [name for name in mine if mine[name] != theirs[name] and name not in RETRIEVAL_FIELDS]


def _as_sentence(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else None
    message = first["msg"].removeprefix("Value error, ")
    if name == "chunks_per_call":  # pydantic speaks of one of the two alternatives only
        message = "must be a number from 1 on, or 'all'"
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(ProjectConfig.model_fields))
        return ConfigurationError(f"Unknown setting {name!r}. Known settings: {known}.", setting=name)
    if name is None:
        return ConfigurationError(f"Wrong settings: {message}.")
    return ConfigurationError(f"Setting {name!r} cannot be {first['input']!r}: {message}.", setting=name)
