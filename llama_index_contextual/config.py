"""The settings of a project: typed and frozen, with a description of each field."""

from __future__ import annotations

import math
import os
import re
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.config import JsonDict

from llama_index_contextual._utils.templates import check_template
from llama_index_contextual.environment import read_dotenv, settings_from
from llama_index_contextual.errors import ConfigurationError

LOCAL = "local"
"""Name of the embedding model that needs no key and no network."""

DEFAULT_LLM = "openai:gpt-6-luna"
"""Name of the default LLM, and of the successor of OpenAI's retired models: small, for many short answers to long
prompts."""

Mode = Literal["semantic", "lexical", "hybrid"]
ContextKind = Literal["llm", "structural", "none"]
Fusion = Literal["rrf", "score"]
FaissIndex = Literal["auto", "flat", "rabitq"]
Adjacent = Literal["merge", "bridge", "expand"]

STYLE_NAMES = ("instruction", "persona", "chain_of_thought")
"""The styles of answers that have a name; any other text is added to the rules."""

_OCR = re.compile(r"auto|rapidocr|tesseract(:\w+(/\w+)?(\+\w+(/\w+)?)*)?", re.ASCII)
_NO_REBUILD: JsonDict = {"rebuild": False}
"""Marks a field whose change takes effect without a new version."""


class TokenPrice(BaseModel):
    """The price of a model, in dollars per million tokens.

    Example:
        >>> TokenPrice(input=2.0, cached=0.5, output=8.0).input
        2.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False, description="Prompt tokens.")
    cached: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Prompt tokens read from the provider's cache; None: the same as `input`.",
    )
    output: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="Completion tokens.")
    written: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Prompt tokens written to the provider's cache; None: the same as `input`.",
    )


class ProjectConfig(BaseModel):
    """The settings of a project, stored in its `project.json`.

    Every field has a description: `print(ProjectConfig.model_fields["top_k"].description)`. The command
    `llama-index-contextual settings` lists all fields with their defaults and descriptions.

    Raises:
        ConfigurationError: A value is out of range, two values contradict each other, or a name is unknown.

    Example:
        >>> ProjectConfig.local(chunk_size=512).chunk_size
        512
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pdf_engine: Literal["pypdf", "pdfium"] = Field(
        default="pdfium",
        description="PDF parser: `pdfium` is fast and decodes more fonts, `pypdf` is written in Python alone.",
        json_schema_extra=_NO_REBUILD,
    )
    ocr: str | None = Field(
        default="auto",
        description="Engine that reads scanned pages and images: `rapidocr` (extra `ocr`; Latin and Chinese scripts),"
        " `tesseract` (English), `tesseract:deu+fra` for other languages by tesseract's codes, the first engine that is"
        " installed (`auto`), or None for no OCR.",
        json_schema_extra=_NO_REBUILD,
    )
    embed_model: str = Field(
        default="openai:text-embedding-3-small",
        description="Embedding model as provider:name, or `local` for WordLlama, which needs no key and no network.",
    )
    embed_window: Annotated[int, Field(ge=32)] | Literal["auto"] | None = Field(
        default="auto",
        description="Number of tokens that the embedding model reads: a longer chunk is embedded in overlapping"
        " windows, whose vectors are averaged. `auto` asks the model, or a table of known models; None lets the model"
        " cut off the rest.",
    )
    context: ContextKind = Field(
        default="llm",
        description="Source of each chunk's context: an LLM (`llm`), the structure of the document (`structural`), or"
        " no context, which is plain RAG (`none`).",
    )
    llm: str = Field(default=DEFAULT_LLM, description="LLM that writes contexts, as provider:name.")
    context_prompt: str | None = Field(
        default=None, description="Prompt template for contexts; None uses the published wording."
    )
    chunks_per_call: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        default=1,
        description="Maximum number of contexts requested in one call: 1 is the published method, larger numbers cost"
        " less; `all` requests those of a whole segment.",
        json_schema_extra=_NO_REBUILD,
    )
    llm_concurrency: int = Field(
        default=8, ge=1, le=512, description="Maximum number of concurrent LLM calls.", json_schema_extra=_NO_REBUILD
    )
    call_timeout: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Timeout of an LLM call in seconds; None: 60, or 300 for contexts written by Ollama.",
        json_schema_extra=_NO_REBUILD,
    )
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of LLM calls per minute; None applies only the provider's own limits.",
        json_schema_extra=_NO_REBUILD,
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of tokens sent to the LLM per minute; None applies only the provider's own limits.",
        json_schema_extra=_NO_REBUILD,
    )
    service_tier: Literal["flex"] | None = Field(
        default=None,
        description="`flex` costs half as much and takes longer, if the LLM's provider offers it.",
        json_schema_extra=_NO_REBUILD,
    )
    prices: dict[str, TokenPrice] = Field(
        default_factory=dict,
        description="Dollars per million tokens (input, cached, output) by model as provider:name, for models that the"
        " price table does not list or that you buy at another price.",
        json_schema_extra=_NO_REBUILD,
    )
    answer_llm: str | None = Field(
        default=None,
        description="LLM that answers questions, as provider:name; None: the same as `llm`.",
        json_schema_extra=_NO_REBUILD,
    )
    answer_temperature: float = Field(
        default=0.1,
        ge=0,
        le=2,
        description="Temperature of the answering LLM, if it is created from its name.",
        json_schema_extra=_NO_REBUILD,
    )
    answer_tokens: int = Field(
        default=8000,
        ge=1,
        description="Maximum number of passage tokens that the LLM reads for an answer.",
        json_schema_extra=_NO_REBUILD,
    )
    style: str = Field(
        default="instruction",
        description="Style of answers: `instruction`, `persona` (few words), `chain_of_thought`, or a description of"
        " your own, which is added to the rules.",
        json_schema_extra=_NO_REBUILD,
    )
    min_confidence: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Confidence, from 0 to 1, below which a search is repeated more widely, and the LLM is told that"
        " even the best passage has little in common with the question; None: below the level `low`.",
        json_schema_extra=_NO_REBUILD,
    )
    intents: bool | Literal["llm"] | dict[str, dict[str, Any]] = Field(
        default=False,
        description="Whether to adapt the search to the intent of a question; `llm` also asks the LLM if the wording"
        " does not decide. An object describes intents of your own: its fields are those of `SearchPlan`.",
        json_schema_extra=_NO_REBUILD,
    )
    adjacent: Adjacent = Field(
        default="merge",
        description="How an answer treats neighbouring hits: `merge` joins them, `bridge` also reads a chunk between"
        " two hits, and `expand` also neighbouring chunks on the same topic.",
        json_schema_extra=_NO_REBUILD,
    )
    guards: bool | None = Field(
        default=None,
        description="Whether to remove harmful HTML and links from answers, and to mask personal data; None: harmful"
        " HTML and links are removed if the extra `answering` is installed, and nothing is masked.",
        json_schema_extra=_NO_REBUILD,
    )
    judge: bool = Field(
        default=False,
        description="Whether the LLM checks each answer, which is withheld unless the passages support it.",
        json_schema_extra=_NO_REBUILD,
    )
    answer_cache: bool | None = Field(
        default=None,
        description="Whether answers are kept in the project's directory and shown again for the same question and"
        " passages, without a call to the LLM; None: in the commands `ask` and `chat` only.",
        json_schema_extra=_NO_REBUILD,
    )
    reference_date: str | None = Field(
        default=None,
        description="Date to which `last quarter` and similar words in a question refer: `today`, or a date such as"
        " 2026-11-22; None: such words are not resolved.",
        json_schema_extra=_NO_REBUILD,
    )
    first_token_timeout: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds to wait for the start of a streamed answer.",
        json_schema_extra=_NO_REBUILD,
    )
    between_tokens_timeout: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds to wait for the next part of a streamed answer; after that, the answer is partial.",
        json_schema_extra=_NO_REBUILD,
    )
    indexes: Mode = Field(
        default="hybrid", description="Indexes that are built: both (`hybrid`), or only `semantic` or `lexical`."
    )
    segment_size: int = Field(
        default=8000, ge=1, description="Maximum number of tokens in a segment; neighbours share a tenth."
    )
    chunk_size: int = Field(default=800, ge=1, description="Maximum number of tokens in a chunk.")
    chunk_overlap: int = Field(
        default=80, ge=0, description="Approximate number of tokens that two neighbouring chunks share."
    )
    faiss_index: FaissIndex = Field(
        default="auto",
        description="How vectors are stored: exactly (`flat`); as RaBitQ codes with 16-bit refinement, at half the"
        " size and faster (`rabitq`); or as codes only if there are many vectors and a probe on them reaches a"
        " recall@20 of at least 0.99 (`auto`).",
    )
    backend: str = Field(
        default="files",
        description="What keeps chunks, vectors and terms: files in the project's directory (`files`), or a Qdrant"
        " server (extra `qdrant`) at this address, such as `qdrant:http://localhost:6333`; its key is read from the"
        " environment variable QDRANT_API_KEY. `qdrant:` with an absolute path, or `qdrant::memory:`, is the local mode"
        " of Qdrant's client, for tests and a few thousand chunks.",
    )
    language: str = Field(default="english", description="Language of the Snowball stemmer, or `none`.")
    mode: Mode = Field(default="hybrid", description="Indexes that a query searches.", json_schema_extra=_NO_REBUILD)
    top_k: int = Field(default=20, ge=1, description="Number of results of a query.", json_schema_extra=_NO_REBUILD)
    fusion: Fusion = Field(
        default="score",
        description="Fusion of the two rankings: by reciprocal ranks (`rrf`), or by scores in units of their standard"
        " deviation (`score`).",
        json_schema_extra=_NO_REBUILD,
    )
    # A plateau (tests/benchmarks/settings.py): with the local embedding on five question sets, 0.35 is 0.2 points of
    # the mean nDCG@10 below the best weight, 0.45, and with a transformer (all-MiniLM-L6-v2) on four of them 0.05
    # points below 0.4. 0.45 would lose 0.8 on the contracts with the local embedding. So both have one setting.
    semantic_weight: float = Field(
        default=0.35,
        ge=0,
        le=1,
        description="Weight of the semantic ranking, from 0 to 1; the rest is that of the lexical one.",
        json_schema_extra=_NO_REBUILD,
    )
    document_weight: float = Field(
        default=0.15,
        ge=0,
        description="Weight of a chunk's document (BM25 over file name, title and opening), relative to the two"
        " rankings, whose weights are scaled to a sum of 1. Fusion by score raises it for documents of more than ten"
        " chunks on average, and lowers it for shorter ones. 0 also leaves out what a document's best chunk adds to its"
        " other chunks.",
        json_schema_extra=_NO_REBUILD,
    )
    rrf_k: float = Field(
        default=10.0,
        gt=0,
        description="Constant of reciprocal rank fusion; 60 in the paper.",
        json_schema_extra=_NO_REBUILD,
    )
    acronym_table: dict[str, str] = Field(
        default_factory=dict,
        description='Acronyms with their long forms, such as {"SLA": "service level agreement"}: a question with one is'
        " also searched for the other, in the lexical search.",
        json_schema_extra=_NO_REBUILD,
    )
    rerank: str | None = Field(
        default=None,
        description="Reranker for the best hits: the name of a cross-encoder, such as"
        " `cross-encoder/ms-marco-MiniLM-L-6-v2`, or `llm` for the LLM; None disables reranking.",
        json_schema_extra=_NO_REBUILD,
    )
    rerank_candidates: int = Field(
        default=50, ge=1, description="Number of hits passed to the reranker.", json_schema_extra=_NO_REBUILD
    )
    rerank_threshold: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Hits with a lower probability by the cross-encoder, from 0 to 1, are dropped; does not apply to"
        " `llm`.",
        json_schema_extra=_NO_REBUILD,
    )
    keep_versions: int = Field(
        default=3,
        ge=2,
        description="Number of published versions kept on disk for a rollback, and as many of `sync --watch`.",
        json_schema_extra=_NO_REBUILD,
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_sentence(error) from None
        if self.context_prompt is not None:
            check_template(self.context_prompt)

    @classmethod
    def local(cls, **changes: Any) -> Self:
        """Return settings that need neither a key nor a network; `changes` override single fields."""
        return cls(**{"embed_model": "local", "context": "structural", **changes})

    @classmethod
    def from_env(cls, dotenv: str | Path | None = ".env", **changes: Any) -> Self:
        """Return the settings in the environment: LLAMA_INDEX_CONTEXTUAL_<FIELD> for each field.

        Args:
            dotenv: File whose variables are added to `os.environ` first, unless they are set already: those of this
                package, and keys and addresses of providers. None reads no file; nothing happens if there is none.
            **changes: Fields that override those in the environment.

        Raises:
            ConfigurationError: A value is invalid.
        """
        if dotenv is not None:
            read_dotenv(dotenv, os.environ)
        return cls(**{**settings_from(os.environ, cls.model_fields), **changes})

    @field_validator("semantic_weight", "document_weight", "rrf_k")
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

    @field_validator("acronym_table")
    @classmethod
    def _whole_acronyms(cls, value: dict[str, str]) -> dict[str, str]:
        for short, long in value.items():
            if not short or len(short.split()) != 1 or short != short.strip() or not any(map(str.isalnum, long)):
                raise ValueError(f"{short!r}: {long!r} is not an acronym of one word with its long form")
        return value

    @field_validator("prices")
    @classmethod
    def _named_models(cls, value: dict[str, TokenPrice]) -> dict[str, TokenPrice]:
        for name in value:
            if ":" not in name and name != LOCAL:
                raise ValueError(f"{name!r} is not provider:name, as in the settings `llm` and `embed_model`")
        return value

    @field_validator("style")
    @classmethod
    def _known_style(cls, value: str) -> str:
        if value not in STYLE_NAMES and len(value.split()) < 2:
            raise ValueError(f"must be {', '.join(STYLE_NAMES)}, or a description in several words")
        return value

    @field_validator("reference_date")
    @classmethod
    def _day(cls, value: str | None) -> str | None:
        try:
            if value not in (None, "today"):
                date.fromisoformat(value)
        except ValueError:
            raise ValueError("must be `today`, or a date such as 2026-11-22") from None
        return value

    @field_validator("ocr")
    @classmethod
    def _known_ocr(cls, value: str | None) -> str | None:
        if value is not None and not _OCR.fullmatch(value):
            raise ValueError(
                "must be 'auto', 'rapidocr', 'tesseract', or 'tesseract:' with its codes of languages, such as"
                " 'tesseract:deu+fra'"
            )
        return value

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str) -> str:
        engine, _, address = value.partition(":")
        if value != "files" and (engine != "qdrant" or not address):
            raise ValueError("must be 'files', or 'qdrant:' with an address, such as 'qdrant:http://localhost:6333'")
        if address and "://" not in address and address != ":memory:" and not Path(address).is_absolute():
            raise ValueError(
                "must be followed by an address such as http://localhost:6333, an absolute path, or :memory:"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "@" in self.backend.partition("://")[2].partition("/")[0]:  # not in its own validator, which would show it
            raise ValueError("backend contains a password, which would be stored: set QDRANT_API_KEY instead")
        if self.chunk_overlap >= self.chunk_size:
            raise ValueError(
                f"chunk_overlap ({self.chunk_overlap}) must be smaller than chunk_size ({self.chunk_size})"
            )
        if self.chunk_size > self.segment_size:
            raise ValueError(f"chunk_size ({self.chunk_size}) must not exceed segment_size ({self.segment_size})")
        return self

    @property
    def builds_semantic(self) -> bool:
        """Whether a semantic index is built."""
        return self.indexes != "lexical"

    @property
    def builds_lexical(self) -> bool:
        """Whether a lexical index is built."""
        return self.indexes != "semantic"

    @property
    def engine(self) -> str:
        """Kind of the backend: "files" or "qdrant"; its address can change without a new version."""
        return self.backend.partition(":")[0]

    def changed(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated."""
        return type(self)(**{**self.model_dump(), **changes})

    def rebuild_fields(self, other: ProjectConfig) -> list[str]:
        """Return the fields that differ from `other` and take effect only in a new version."""
        mine, theirs = ({**one.model_dump(), "backend": one.engine} for one in (self, other))
        return [name for name in mine if mine[name] != theirs[name] and name not in RETRIEVAL_FIELDS]


RETRIEVAL_FIELDS = frozenset(
    name for name, field in ProjectConfig.model_fields.items() if field.json_schema_extra == _NO_REBUILD
)
"""Fields that can change without building a new version."""


def described(name: str) -> str:
    """Return the description of a setting.

    Example:
        >>> described("top_k")
        'Number of results of a query.'
    """
    return ProjectConfig.model_fields[name].description or ""


def _as_sentence(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else None
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if name == "chunks_per_call":  # pydantic mentions only one of the alternatives
        message = "must be a number of at least 1, or 'all'"
    if name == "intents":
        message = "must be true, false, 'llm', or an object of search plans"
    if name == "embed_window":
        message = "must be a number of at least 32, 'auto', or None"
    if first["type"] == "extra_forbidden":
        known = sorted(ProjectConfig.model_fields)
        close = get_close_matches(str(name), known, n=1)
        advice = f"Did you mean {close[0]!r}?" if close else f"Known settings: {', '.join(known)}."
        message = f"Unknown setting {name!r}. {advice}"
        return ConfigurationError(message, setting=name)
    if name is None:
        return ConfigurationError(f"Invalid settings: {message}.")
    return ConfigurationError(f"Setting {name!r} cannot be {first['input']!r}: {message}.", setting=name)
