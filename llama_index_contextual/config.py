"""The settings of a project: typed and frozen, with a description of each field."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticUndefined

from llama_index_contextual._utils.files import read_file
from llama_index_contextual._utils.templates import check_template
from llama_index_contextual._utils.text import parse_json, represent
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.money.price import Price

LOCAL = "local"
"""Name of the embedding model that needs no key and no network."""

SPOTLIGHT = "spotlight"
"""Name of the default reranker."""

AUTO: Final = "auto"
"""Value of `language` for the language of each document, of `rerank` for the best cross-encoder on this machine, and of
`rerank_threshold` for the default."""

LANGUAGES: Mapping[str, str] = {
    "ar": "arabic",
    "bg": "bulgarian",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "he": "hebrew",
    "hi": "hindi",
    "hr": "croatian",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "lt": "lithuanian",
    "ne": "nepali",
    "nl": "dutch",
    "nn": "norwegian",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sk": "slovak",
    "sl": "slovenian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "th": "thai",
    "tr": "turkish",
    "uk": "ukrainian",
    "vi": "vietnamese",
    "zh": "chinese",
}
"""Names of the languages that are recognised, by ISO 639 code."""

DEFAULT_LLM = "openai:gpt-6-luna"
"""Name of the default LLM, which also replaces retired OpenAI models.

It is a small model that is suited to many short answers to long prompts.
"""

Mode = Literal["semantic", "lexical", "hybrid"]
ContextKind = Literal["llm", "structural", "none"]
Fusion = Literal["rrf", "score"]
RerankThreshold = float | Literal["auto"] | None
MinRelevance = float | Literal["auto"] | None

STYLE_NAMES = ("instruction", "persona", "chain_of_thought")
"""Names of the answer styles. Any other value is a description of a style, which is added to the rules."""

_OCR = re.compile(r"auto|rapidocr|tesseract(:\w+(/\w+)?(\+\w+(/\w+)?)*)?", re.ASCII)
_NO_REBUILD: JsonDict = {"rebuild": False}
_CONFIG = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _live(default: Any = PydanticUndefined, **options: Any) -> Any:
    """Return a field for a setting that can be changed without building a new version."""
    return Field(default, json_schema_extra=_NO_REBUILD, **options)


def _language(value: str) -> str:
    import Stemmer

    known = [AUTO, *sorted({*LANGUAGES.values(), *Stemmer.algorithms()}), "none"]
    if value not in known:
        raise ValueError(f"must be one of {', '.join(known)}")
    return value


def _languages(value: Mapping[str, str]) -> dict[str, str]:
    for place, language in value.items():
        if not place.strip("/") or _language(language) == AUTO:
            raise ValueError("must map the path of a file or folder to a language, such as {'letters/de': 'german'}")
    return dict(value)


def _context_languages(value: Sequence[str]) -> list[str]:
    codes = {name: code for code, name in LANGUAGES.items()}
    for language in value:
        if language not in LANGUAGES and language not in codes:
            raise ValueError(f"must be a list of languages: the codes or names of {', '.join(codes)}")
    return list(dict.fromkeys(codes.get(language, language) for language in value))


Prefixes = tuple[str, str] | Literal["auto"] | None
"""Prefixes of questions and of passages for an embedding model."""

ContextLanguages = Annotated[list[str], AfterValidator(_context_languages)]
"""Languages by ISO 639 code; names, such as "german", are replaced by codes."""


def _acronyms(value: dict[str, str]) -> dict[str, str]:
    # In the Unicode form of the questions with which they are compared.
    value = {unicodedata.normalize("NFC", short): unicodedata.normalize("NFC", long) for short, long in value.items()}
    for short, long in value.items():
        if not short or len(short.split()) != 1 or short != short.strip() or not any(map(str.isalnum, long)):
            raise ValueError(f"{short!r}: {long!r} is not an acronym of one word with its long form")
    return value


def _prices(value: dict[str, Price]) -> dict[str, Price]:
    for name in value:
        if ":" not in name and name != LOCAL:
            raise ValueError(f"{name!r} is not provider:name, as in the settings `llm` and `embed_model`")
    return value


def _style(value: str) -> str:
    if value not in STYLE_NAMES and len(value.split()) < 2:
        raise ValueError(f"must be {', '.join(STYLE_NAMES)}, or a description in several words")
    return value


def _day(value: str) -> str:
    try:
        if value != "today":
            date.fromisoformat(value)
    except ValueError:
        raise ValueError("must be `today`, or a date such as 2026-11-22") from None
    return value


def _ocr(value: str) -> str:
    if not _OCR.fullmatch(value):
        raise ValueError(
            "must be 'auto', 'rapidocr', 'tesseract', or 'tesseract:' with its codes of languages, such as"
            " 'tesseract:deu+fra'"
        )
    return value


def _backend(value: str) -> str:
    engine, _, address = value.partition(":")
    if value != "files" and (engine != "qdrant" or not address):
        raise ValueError("must be 'files', or 'qdrant:' with an address, such as 'qdrant:http://localhost:6333'")
    if address and "://" not in address and address != ":memory:" and not Path(address).is_absolute():
        raise ValueError("must be followed by an address such as http://localhost:6333, an absolute path, or :memory:")
    return value


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

    model_config = _CONFIG

    pdf_engine: Literal["pypdf", "pdfium"] = _live("pdfium")
    """PDF parser: `pdfium` finds paragraphs and table rows; `pypdf` does not, but needs no native code."""
    ocr: Annotated[str, AfterValidator(_ocr)] | None = _live("auto")
    """Engine that reads scanned pages and images: `rapidocr` (extra `ocr`; Latin and Chinese scripts), `tesseract`
    (English), `tesseract:deu+fra` for other languages by tesseract's codes, the first engine that is installed
    (`auto`), or None for no OCR.
    """
    figures: bool | Literal["ocr"] = _live(True)
    """Whether the pictures, drawings and charts of documents are kept with their captions when a file is read, and
    shown with the passages they belong to. With `ocr`, the text in the pictures of PDFs is also read, which takes a few
    seconds for each page with a picture. A change applies to files that are read from then on.
    """
    embed_model: str = "openai:text-embedding-3-small"
    """Embedding model as provider:name, or `local` for WordLlama, which needs no key and no network."""
    embed_window: Annotated[int, Field(ge=32)] | Literal["auto"] | None = "auto"
    """Number of tokens that the embedding model reads. Longer chunks are embedded in overlapping windows, and the
    vectors are averaged. `auto` takes the number from the model or from a table of known models; with None, the model
    truncates longer chunks.
    """
    embed_prefixes: Prefixes = "auto"
    """Prefixes of questions and of passages for an embedding model on a server (`openai-like`, `ollama`), such as
    ["query: ", "passage: "]. `auto` takes them from a table of known models; with None, nothing is added, for servers
    that add the prefixes themselves.
    """
    context: ContextKind = "llm"
    """Source of each chunk's context: an LLM (`llm`), the structure of the document (`structural`), or no context,
    which is plain RAG (`none`).
    """
    llm: str | None = DEFAULT_LLM
    """LLM that writes contexts and, unless `answer_llm` names another one, answers, as provider:name. None: no text is
    sent to an LLM until one is named, as in `ProjectConfig.local()`.
    """
    context_prompt: str | None = None
    """Prompt template for contexts; None uses the published wording."""
    context_neighbours: bool = False
    """Whether each context also summarises the previous and the next chunk, in at most 30 tokens each. This needs no
    additional calls: the summaries come from the contexts of these chunks, or from their text.
    """
    context_languages: ContextLanguages = Field(default_factory=list)
    """Languages in which questions are asked, such as ["en", "de"]. In the call for the context of a chunk, the LLM is
    also asked for a line with the names, the subject and the terms of the chunk in each of these languages that is not
    the language of the text. The lines are indexed and embedded with the context.
    """
    llm_concurrency: int = _live(8, ge=1, le=512)
    """Maximum number of concurrent LLM calls."""
    call_timeout: float | None = _live(None, gt=0)
    """Timeout of an LLM call, or of an answer that is not streamed, in seconds; None: 60, or 600 for a local server (on
    this machine or in a private network) and for Ollama.
    """
    requests_per_minute: int | None = _live(None, ge=1)
    """Maximum number of LLM calls per minute; None applies only the provider's own limits."""
    tokens_per_minute: int | None = _live(None, ge=1)
    """Maximum number of tokens sent to the LLM per minute; None applies only the provider's own limits."""
    service_tier: Literal["flex"] | None = _live(None)
    """`flex` costs half as much and takes longer, if the LLM's provider offers it."""
    prices: Annotated[dict[str, Price], AfterValidator(_prices)] = _live(default_factory=dict)
    """Dollars per million tokens (input, cached, output) by model as provider:name, for models that the price table
    does not list or that you buy at another price.
    """
    answer_llm: str | None = _live(None)
    """LLM that answers questions, as provider:name; None: the same as `llm`."""
    answer_temperature: float | None = _live(None, ge=0, le=2)
    """Temperature of the answering LLM, if it is created from its name; None: 0.1, or the model's own temperature if it
    cannot be set, as for reasoning models.
    """
    answer_tokens: int = _live(8000, ge=1)
    """Maximum number of passage tokens that the LLM reads for an answer."""
    style: Annotated[str, AfterValidator(_style)] = _live("instruction")
    """Style of answers: `instruction`, `persona` (few words), `chain_of_thought`, or a description of your own, which
    is added to the rules.
    """
    min_confidence: float | None = _live(None, ge=0, le=1)
    """Confidence, from 0 to 1, below which a search is repeated more widely, and the LLM is told that even the best
    passage has little in common with the question; None: below the level `low`.
    """
    min_relevance: float | None = _live(None, ge=0, le=1)
    """Limit for the relevance, from 0 to 1, where people and agents read: on the command line, in the Workbench, and in
    the tools for agents. The results end with the last hit that reaches it; the hits after it are folded away. None: a
    value that keeps 97 % of the evidence among the first five hits on our question sets.
    """
    intents: bool | Literal["llm"] | dict[str, dict[str, Any]] = _live(False)
    """Whether to adapt the search to the intent of a question; with `llm`, the LLM classifies questions whose wording
    does not make the intent clear. An object replaces the plans of individual intents, with the fields of `SearchPlan`.
    """
    guards: bool | None = _live(None)
    """True: escape HTML, remove unsafe links and mask personal data in answers; None: the same without masking; False:
    leave answers unchanged.
    """
    judge: bool = _live(False)
    """Whether the LLM checks each answer, which is withheld unless the passages support it."""
    translate: bool = _live(True)
    """Whether the answering LLM translates a question into the language of most documents if the search cannot relate
    the two languages. This takes one more call, unless the translation is stored.
    """
    answer_cache: bool | None = _live(None)
    """Whether answers are stored in the project's directory and reused for the same question and passages, without an
    LLM call; None: only by the commands `ask` and `chat`.
    """
    reference_date: Annotated[str, AfterValidator(_day)] | None = _live(None)
    """Date to which `last quarter` and similar words in a question refer: `today`, or a date such as 2026-11-22; None:
    such words are not resolved.
    """
    first_token_timeout: float | None = _live(None, gt=0)
    """Seconds to wait for the start of an answer; None: 30, or 300 for a local server and for Ollama."""
    between_tokens_timeout: float | None = _live(None, gt=0)
    """Seconds to wait for the next part of an answer, after which it is partial; None: 10, or 60 for a local server and
    for Ollama.
    """
    indexes: Mode = "hybrid"
    """Indexes that are built: both (`hybrid`), or only `semantic` or `lexical`."""
    segment_size: int = Field(default=8000, ge=1)
    """Maximum number of tokens in a segment; neighbours share a tenth."""
    chunk_size: int = Field(default=800, ge=1)
    """Maximum number of tokens in a chunk."""
    chunk_overlap: int = Field(default=80, ge=0)
    """Approximate number of tokens that two neighbouring chunks share."""
    backend: Annotated[str, AfterValidator(_backend)] = "files"
    """Where the vectors are stored: in files in the project's directory (`files`), or on a Qdrant server (extra
    `qdrant`) at this address, such as `qdrant:http://localhost:6333`; its key is read from the environment variable
    QDRANT_API_KEY. `qdrant:` with an absolute path, or `qdrant::memory:`, is the local mode of Qdrant's client, for
    tests and a few thousand chunks.
    """
    language: Annotated[str, AfterValidator(_language)] = AUTO
    """Language of the documents, which determines stemmer and stop words: `auto` to recognise it for each document, the
    name of a language such as `german` for all documents, or `none` for no stemming and no stop words.
    """
    languages: Annotated[dict[str, str], AfterValidator(_languages)] = Field(default_factory=dict)
    """Languages of individual files and folders, which take precedence over `language`, by their path as shown by
    `documents`, such as {"letters/de": "german"}. The longest path applies.
    """
    mode: Mode = _live("hybrid")
    """Indexes that a query searches."""
    top_k: int = _live(20, ge=1)
    """Number of results of a query."""
    fusion: Fusion = _live("score")
    """Fusion of the two rankings: by reciprocal ranks (`rrf`), or by scores in units of their standard deviation
    (`score`).
    """
    # Weights near the optimum give similar results (tests/benchmarks/settings.py). With the local embedding on nine
    # question sets, the mean nDCG@10 for 0.35 is 0.1 points lower than for the best weight, 0.3. With a transformer
    # (all-MiniLM-L6-v2) on four of these sets, it is 0.05 points lower than for 0.4. Therefore, both embeddings have
    # the same default.
    semantic_weight: float = _live(0.35, ge=0, le=1)
    """Weight of the semantic ranking, from 0 to 1; the rest is that of the lexical one."""
    document_weight: float = _live(0.15, ge=0)
    """Weight of a chunk's document (BM25 over file name, title and opening), relative to the two rankings, whose
    weights are scaled to a sum of 1. Fusion by score raises it for documents of more than ten chunks on average, and
    lowers it for shorter ones. 0 also leaves out what a document's best chunk adds to its other chunks.
    """
    rrf_k: float = _live(10.0, gt=0)
    """Constant of reciprocal rank fusion; 60 in the paper."""
    acronym_table: Annotated[dict[str, str], AfterValidator(_acronyms)] = _live(default_factory=dict)
    """Acronyms with their long forms, such as {"SLA": "service level agreement"}. If a question contains one form, the
    lexical search also includes the other.
    """
    rerank: str | None = _live(SPOTLIGHT)
    """How the best hits are reranked: by their best sentence or table row (`spotlight`, which needs only WordLlama,
    extra `local`, and does not apply to source code); by a cross-encoder, given by its name, such as
    `cross-encoder/ms-marco-MiniLM-L-6-v2`, or as `fastembed:NAME` if fastembed runs it; by the best cross-encoder on
    this machine (`auto`, or `auto:NAME` to try this one first); or by the LLM (`llm`). Cross-encoders and the LLM read
    the hits in the order of `spotlight`. None: the hits are not reranked.
    """
    rerank_candidates: int = _live(50, ge=1)
    """Number of hits passed to the reranker."""
    rerank_threshold: RerankThreshold = _live(AUTO)
    """Hits with a lower probability by the cross-encoder, from 0 to 1, are dropped: `auto` for 0.3 if the model returns
    probabilities, None to keep all hits; does not apply to `llm`.
    """
    keep_versions: int = _live(3, ge=2)
    """Number of published versions kept on disk for a rollback. Versions of `sync --watch` are counted separately, and
    those that removed many documents separately again.
    """
    allow_private_addresses: bool = _live(False)
    """Whether `ingest` and `sync_folders` read `http://` and `https://` URLs at internal addresses: of this machine, of
    a private network, or of a cloud provider's metadata service. The addresses of redirects are checked too.
    """

    def __init__(self, **values: Any) -> None:
        if values.get("llm", ...) is None and values.get("context", "llm") == "llm":
            del values["llm"]  # contexts were requested, so the default applies
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_sentence(error) from None
        if self.context_prompt is not None:
            check_template(self.context_prompt)

    @classmethod
    def local(cls, **changes: Any) -> Self:
        """Return settings that need neither an API key nor a network; `changes` override individual fields.

        No text is sent to a provider that `changes` do not name: without `llm` or `answer_llm`, there are no answers.
        """
        return cls(**{"embed_model": LOCAL, "context": "structural", "llm": None, **changes})

    @classmethod
    def from_env(cls, dotenv: str | Path | None = ".env", **changes: Any) -> Self:
        """Return the settings in the LLAMA_INDEX_CONTEXTUAL_<FIELD> environment variables.

        Args:
            dotenv: File whose variables are first added to `os.environ`, unless they are already set. Only variables of
                this package and the keys and addresses of providers are read. A missing file is ignored; None reads no
                file.
            **changes: Fields that override settings in the environment.

        Raises:
            ConfigurationError: A value is invalid.
        """
        if dotenv is not None:
            read_dotenv(dotenv, os.environ)
        return cls(**{**environment_settings(os.environ), **changes})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "@" in self.backend.partition("://")[2].partition("/")[0]:  # a field validator's error would show it
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
        """The kind of backend, "files" or "qdrant", without the address.

        The address can be changed without building a new version.
        """
        return self.backend.partition(":")[0]

    def changed(self, **changes: Any) -> Self:
        """Return a validated copy in which the given fields are changed."""
        return type(self)(**{**self.model_dump(), **changes})

    def rebuild_fields(self, other: ProjectConfig, *, derived: bool = True) -> list[str]:
        """Return the names of fields that differ from `other` and take effect only in a new version.

        Args:
            other: The settings to compare with.
            derived: Whether to include fields that affect only the lexical indexes, which are made again from the
                stored chunks without calling a model.
        """
        mine, theirs = ({**one.model_dump(), "backend": one.engine} for one in (self, other))
        unused = set(RETRIEVAL_FIELDS)
        if "llm" not in (self.context, other.context):
            unused |= {"llm", "context_languages"}
        if not derived or not (self.builds_lexical or other.builds_lexical):
            unused |= {"language", "languages"}
        if not derived and self.builds_semantic == other.builds_semantic:
            unused.add("indexes")
        return [name for name in mine if mine[name] != theirs[name] and name not in unused]


RETRIEVAL_FIELDS = frozenset(
    name for name, field in ProjectConfig.model_fields.items() if field.json_schema_extra == _NO_REBUILD
)
"""Fields that can be changed without building a new version."""


def default(name: str) -> Any:
    """Return the default value of a setting.

    Example:
        >>> default("top_k")
        20
    """
    return ProjectConfig.model_fields[name].get_default(call_default_factory=True)


def described(name: str) -> str:
    """Return the description of a setting.

    Example:
        >>> described("top_k")
        'Number of results of a query.'
    """
    return " ".join((ProjectConfig.model_fields[name].description or "").split())


def _as_sentence(error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else None
    # A field that accepts several types has one error for each type.
    reasons = [each["msg"] for each in error.errors() if each["loc"][:1] == first["loc"][:1]]
    message = "; or ".join(reasons).replace("Value error, ", "").replace("Input should be", "it must be")
    if name is None:
        return ConfigurationError(f"Invalid settings: {message}.")
    if first["type"] == "extra_forbidden":
        known = sorted(ProjectConfig.model_fields)
        close = get_close_matches(name, known, n=1)
        advice = f"Did you mean {close[0]!r}?" if close else f"Known settings: {', '.join(known)}."
        return ConfigurationError(f"Unknown setting {name!r}. {advice}", setting=name)
    return ConfigurationError(f"Setting {name!r} cannot be {represent(first['input'])}: {message}.", setting=name)


# ---- the environment -------------------------------------------------------------------------------------------------

PREFIX = "LLAMA_INDEX_CONTEXTUAL_"

KEYS: Mapping[str, tuple[str, ...]] = {
    "OPENAI_API_KEY": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "ANTHROPIC_API_KEY": (),
    "VOYAGE_API_KEY": ("VOYAGE_API_BASE",),
}
"""Environment variables with providers' keys, each with the variables for the address to which the key is sent."""

ADDRESSES = ("OLLAMA_HOST",)
"""Environment variables with the addresses of providers that need no key."""

_MAX_DOTENV = 1_000_000
"""Size in bytes from which a file is not a `.env` file."""
_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")


def environment_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the LLAMA_INDEX_CONTEXTUAL_<FIELD> variables, parsing values that are valid JSON.

    Args:
        environment: Environment variables; variables with an empty value are ignored.

    Example:
        >>> environment_settings({"LLAMA_INDEX_CONTEXTUAL_TOP_K": "5", "HOME": "/home/ann"})
        {'top_k': 5}
    """
    texts = {field: environment.get(f"{PREFIX}{field.upper()}") for field in ProjectConfig.model_fields}
    return {field: parsed_value(text) for field, text in texts.items() if text}


def parsed_value(text: str) -> Any:
    """Parse the value of a setting as JSON; if it is not valid JSON, return the string unchanged."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def read_dotenv(path: str | Path, environment: MutableMapping[str, str]) -> None:
    """Add the variables in a `.env` file to the environment, unless they are already set.

    Only variables of this package and the keys and addresses of providers are read. The address for a key is ignored
    unless the key is also read from the file, so that a `.env` file in a folder of documents cannot redirect your key.

    Lines have the form NAME=value, with or without `export` and quotation marks; all other lines are ignored.

    Args:
        path: The file; nothing happens if it does not exist.
        environment: Environment variables, such as `os.environ`.
    """
    try:
        lines = read_file(Path(path), _MAX_DOTENV).decode("utf-8-sig", errors="replace").splitlines()
    except OSError:
        return  # the file does not exist, or is not a file
    values = {match[1]: _unquoted(match[2]) for line in lines if (match := _LINE.match(line))}
    known = {name for name in values if name.startswith(PREFIX)} | {*ADDRESSES}
    for key, addresses in KEYS.items():
        if key not in environment:
            known |= {key, *addresses}
    for name in known & values.keys():
        environment.setdefault(name, values[name])


def _unquoted(value: str) -> str:
    quoted = re.fullmatch(r"(['\"])(.*?)\1\s*(?:#.*)?", value)
    return quoted[2] if quoted else re.sub(r"(?:^|(?<!\s)\s+)#.*$", "", value)
