"""Qdrant's engine in this process (Qdrant Edge) behind the methods of its client that the package calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import qdrant_edge as edge
from qdrant_client import models

from llama_index_contextual.index import qdrant

_CLAUSES = ("must", "should", "must_not")
_FIELDS = {"added_in": "integer", "removed_in": "integer", "facets": "integer", "doc_id": "keyword"}
_SCHEMAS = {"integer": edge.PayloadSchemaType.Integer, "keyword": edge.PayloadSchemaType.Keyword}


class EdgeClient:
    """Collections of Qdrant Edge in a folder, with the calls of `QdrantClient`.

    Args:
        folder: The folder.
        indexing_threshold: Size in kilobytes of the vectors of a segment from which it gets an HNSW index.
    """

    def __init__(self, folder: Path, indexing_threshold: int | None = None) -> None:
        self.folder = folder
        self.shards: dict[str, Any] = {}
        self.vectors: dict[str, Mapping[str, Any]] = {}
        self.written = 0
        self._threshold = indexing_threshold

    def get_collections(self) -> list[str]:
        return list(self.shards)

    def collection_exists(self, name: str) -> bool:
        return name in self.shards

    def create_collection(self, name: str, vectors_config: Mapping[str, Any]) -> None:
        config = edge.EdgeConfig(
            vectors={key: _parameters(one) for key, one in vectors_config.items()},
            optimizers=self._threshold and edge.EdgeOptimizersConfig(indexing_threshold=self._threshold),
        )
        (self.folder / name).mkdir(parents=True)
        self.shards[name] = edge.EdgeShard.create(str(self.folder / name), config)
        self.vectors[name] = vectors_config
        for field, kind in _FIELDS.items():
            self.create_payload_index(name, field, kind, wait=True)

    def create_payload_index(self, name: str, field: str, kind: str, *, wait: bool) -> None:
        self.shards[name].update(edge.UpdateOperation.create_field_index(field, _SCHEMAS[kind]))

    def delete_collection(self, name: str) -> None:
        self.shards.pop(name).close()
        shutil.rmtree(self.folder / name)

    def upsert(self, name: str, points: Sequence[Any], *, wait: bool) -> None:
        self.written += len(points)
        own = [edge.Point(id=one.id, vector=one.vector, payload=one.payload) for one in points]
        self.shards[name].update(edge.UpdateOperation.upsert_points(own))

    def set_payload(self, name: str, payload: Any, *, points: Any, wait: bool) -> None:
        self.shards[name].update(edge.UpdateOperation.set_payload_by_filter(_filter(points), payload))

    def delete(self, name: str, selector: Any, *, wait: bool) -> None:
        self.shards[name].update(edge.UpdateOperation.delete_points_by_filter(_filter(selector.filter)))

    def query_points(self, name: str, *, search_params: Any, **given: Any) -> SimpleNamespace:
        request = edge.QueryRequest(
            limit=given["limit"],
            query=edge.Query.Nearest(given["query"], using=given["using"]),
            filter=_filter(given["query_filter"]),
            with_payload=given["with_payload"],
            with_vector=given["with_vectors"],
            params=search_params and edge.SearchParams(exact=bool(search_params.exact), hnsw_ef=search_params.hnsw_ef),
        )
        return SimpleNamespace(points=self.shards[name].query(request))

    def retrieve(self, name: str, ids: list[str], *, with_payload: list[str], with_vectors: Any) -> list[Any]:
        return list(self.shards[name].retrieve(ids, with_payload, with_vectors))

    def scroll(self, name: str, selection: Any, *, with_vectors: bool, **given: Any) -> tuple[list[Any], Any]:
        request = edge.ScrollRequest(filter=_filter(selection), with_vector=with_vectors, **given)
        points, place = self.shards[name].scroll(request)
        return list(points), place

    def count(self, name: str, selection: Any, *, exact: bool) -> SimpleNamespace:
        return SimpleNamespace(count=self.shards[name].count(edge.CountRequest(exact=exact, filter=_filter(selection))))

    def get_collection(self, name: str) -> SimpleNamespace:
        """Build the indexes that a server builds in the background."""
        self.shards[name].optimize()
        params = SimpleNamespace(vectors=self.vectors[name])
        return SimpleNamespace(status="green", config=SimpleNamespace(params=params), payload_schema=_FIELDS)

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()


def _parameters(own: models.VectorParams) -> Any:
    graph: Any = own.hnsw_config
    index = edge.HnswIndexConfig(m=graph.m, ef_construct=graph.ef_construct, full_scan_threshold=1_000)
    return edge.EdgeVectorParams(size=own.size, distance=edge.Distance.Dot, hnsw_config=index)


def _filter(own: models.Filter) -> Any:
    clauses = {clause: [_condition(one) for one in getattr(own, clause) or ()] or None for clause in _CLAUSES}
    return edge.Filter(**clauses)


def _condition(own: Any) -> Any:
    if isinstance(own, models.Filter):
        return _filter(own)
    if isinstance(own, models.HasIdCondition):
        return edge.HasIdCondition(own.has_id)
    if own.match is not None:
        return edge.FieldCondition(key=own.key, match=edge.MatchAny(own.match.any))
    limits = {name: getattr(own.range, name) for name in ("gte", "gt", "lte", "lt")}
    return edge.FieldCondition(key=own.key, range=edge.RangeFloat(**limits))


@contextmanager
def edge_engine(folder: Path, indexing_threshold: int | None = None) -> Iterator[tuple[str, EdgeClient]]:
    """Let an address stand for Qdrant Edge in a folder, and yield the address and its client."""
    client, url = EdgeClient(folder, indexing_threshold), f"http://edge.invalid/{folder.name}"
    real = qdrant.connect

    def connect(address: str, key: str | None) -> Any:
        return client if address == url else real(address, key)

    with mock.patch.object(qdrant, "connect", connect):
        yield url, client
    client.close()
