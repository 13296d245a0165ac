"""Reranking of the best hits by a cross-encoder or an LLM, through LlamaIndex's postprocessors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual._utils.calls import RetryPolicy, call, describe
from llama_index_contextual._utils.forks import new_lock
from llama_index_contextual._utils.redaction import watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, ContextualError, ModelError
from llama_index_contextual.retrievers.response import RetrievedChunk

LLM_RERANK = "llm"

_RETRY = RetryPolicy(attempts=3)
_LLM_BATCH = 10
_CHOICE = re.compile(r"^[^\d\n:]*:\s*(\d{1,9})\s*,[^\d\n:]*:\s*(\d+(?:\.\d+)?)", re.MULTILINE)
_ALL = 1_000_000  # no limit: the search takes the first k


class Reranker:
    """Sort hits by the scores of a LlamaIndex reranker.

    Args:
        name: Value of the setting `rerank`, for messages.
        postprocessor: A LlamaIndex reranker that returns all hits, or the relevant ones.
        threshold: Lowest score of a hit that is kept; None keeps all hits.
    """

    def __init__(self, name: str, postprocessor: BaseNodePostprocessor, *, threshold: float | None = None) -> None:
        self.name = name
        self.threshold = threshold
        self._postprocessor = postprocessor

    def rerank(self, bundle: QueryBundle, hits: Sequence[RetrievedChunk]) -> list[RetrievedChunk]:
        """Return copies of the hits with the scores of the reranker, best first; equal scores keep their order.

        The rank of a copy is still the one before, as `explain` needs both.

        Raises:
            ModelError: The model fails.
        """
        nodes = [NodeWithScore(node=hit.node, score=hit.score) for hit in hits]  # the reranker overwrites the scores
        by_id = {hit.node_id: hit for hit in hits}
        try:
            scored = call(lambda: self._postprocessor.postprocess_nodes(nodes, query_bundle=bundle), _RETRY)
        except ContextualError:
            raise  # has a readable message already
        except Exception as error:  # a model class may raise any error
            raise ModelError(describe(error, setting="rerank", model=self.name), setting="rerank") from error
        ordered = sorted(scored, key=lambda one: (-one.get_score(), by_id[one.node_id].rank))
        best: dict[str, RetrievedChunk] = {}
        for one in ordered:
            if self.threshold is None or one.get_score() >= self.threshold:
                # an LLM may return a passage twice
                best.setdefault(one.node_id, by_id[one.node_id].model_copy(update={"score": float(one.get_score())}))
        return list(best.values())


class Rerankers:
    """Create the reranker of the settings and cache it, because a cross-encoder takes seconds to load.

    Args:
        load_llm: Loads the LLM for `rerank="llm"`.
    """

    def __init__(self, load_llm: Callable[[], LLM] | None = None) -> None:
        self._load_llm = load_llm
        self._lock = new_lock()
        self._cached: tuple[tuple[str, str | None], BaseNodePostprocessor] | None = None

    def of(self, config: ProjectConfig) -> Reranker | None:
        """Return the reranker of the settings, or None.

        Raises:
            ModelError: The reranker cannot be created: the package, the model or the LLM is missing.
        """
        if config.rerank is None:
            return None
        with self._lock:
            key = config.rerank, config.llm if config.rerank == LLM_RERANK else None
            if self._cached is None or self._cached[0] != key:
                self._cached = key, self._make(config.rerank)
            return Reranker(config.rerank, self._cached[1], threshold=config.rerank_threshold)

    def _make(self, name: str) -> BaseNodePostprocessor:
        if name == LLM_RERANK:
            return self._llm_reranker()
        from llama_index.core.postprocessor import SentenceTransformerRerank

        try:
            # The model's own code is never run.
            return SentenceTransformerRerank(model=name, top_n=_ALL, trust_remote_code=False)
        except ImportError as error:
            raise ModelError(
                f'The reranker {name!r} needs sentence-transformers: pip install "llama-index-contextual[rerank]"',
                setting="rerank",
            ) from error
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The reranker {name!r} cannot be loaded ({error}): name a cross-encoder of the Hugging Face hub or the"
                f" folder of one, or set rerank={LLM_RERANK!r}.",
                setting="rerank",
            ) from error

    def _llm_reranker(self) -> BaseNodePostprocessor:
        from llama_index.core.postprocessor import LLMRerank

        if self._load_llm is None:
            raise ConfigurationError("rerank='llm' needs an LLM: search through a project.", setting="rerank")
        llm = self._load_llm()
        watch(llm)
        return LLMRerank(
            llm=llm,
            top_n=_ALL,
            choice_batch_size=_LLM_BATCH,
            parse_choice_select_answer_fn=_choices,
        )


def _choices(answer: str, count: int) -> tuple[list[int], list[float]]:
    """Return the numbers of the passages in an LLM's answer, from 1, and their scores.

    LlamaIndex's own parser interprets 0 as the last passage and 0.9 as 0, and shifts the scores after a line without a
    score.
    """
    choices = [(int(number), float(score)) for number, score in _CHOICE.findall(answer)]
    valid = [(number, score) for number, score in choices if 1 <= number <= count]
    return [number for number, _ in valid], [score for _, score in valid]
