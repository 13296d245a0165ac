"""Recompute the totals of a provider's log from the requests in it.

This works another way than the server: the server keeps hashes of prompt prefixes while it runs, this looks afterwards
which prefixes had been answered when a call arrived. Nothing the server counted is used, except to report calls it
counted differently (`mismatches`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from tests.support.records import CHAT_PATH, EMBEDDINGS_PATH, message_text
from tests.support.tokens import encode

# Faults that spoil neither the text nor the delivery of an answer.
HARMLESS = (None, "hang", "missing_usage")
_CHUNK = re.compile(r"(?is)<chunk\b[^>]*>\s*(.*?)\s*</chunk>")

Call = dict[str, Any]


def _tokens(text: str, name: str = "o200k_base") -> list[int]:
    return list(memoryview(encode(text, name)).cast("I"))


def _prompt(body: dict[str, Any]) -> list[int]:
    """Return the tokens of a chat prompt, written as the chat format has it."""
    start, end, separator = 200264, 200265, 200266
    tokens = _tokens(json.dumps(body["tools"], ensure_ascii=False)) if body.get("tools") else []
    for message in body["messages"]:
        tokens += [start, *_tokens(message["role"]), separator, *_tokens(message_text(message)), end]
    return [*tokens, start, *_tokens("assistant"), separator]


def _prefixes(call: Call) -> Iterator[tuple[int, int]]:
    """Yield the sizes at which a prompt may be cached, each with a key that equal prefixes share."""
    body, tokens = call["body"], _prompt(call["body"])
    key = hash((body["model"], body.get("prompt_cache_key")))
    for size in range(1024, len(tokens) + 1, 128):
        key = hash((key, *tokens[0 if size == 1024 else size - 128 : size]))
        yield size, key


def _cached(paid: Sequence[Call]) -> dict[int, int]:
    """Return the cacheable tokens of each paid chat call, by request id."""
    answered: dict[int, float] = {}
    for call in paid:
        for _, key in _prefixes(call):
            answered[key] = min(call["completed"], answered.get(key, inf))
    return {
        call["id"]: max((size for size, key in _prefixes(call) if answered[key] <= call["arrived"]), default=0)
        for call in paid
    }


def _read(path: str | Path) -> list[Call]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _most_in_flight(calls: Sequence[Call]) -> int:
    """Return the most calls that were open at one time."""
    steps = [(call["arrived"], 1) for call in calls] + [(call["completed"] or inf, -1) for call in calls]
    most = level = 0
    for _, change in sorted(steps):
        level += change
        most = max(most, level)
    return most


def _repeats(calls: Sequence[Call], keys: Callable[[Call], Iterable[str]]) -> int:
    """Count contents sent again after an answer to the same content succeeded."""
    succeeded: dict[str, float] = {}
    for call in calls:
        if call["status"] == 200 and call["fault"] in HARMLESS and call["finish_reason"] in ("stop", "tool_calls"):
            for key in keys(call):
                succeeded[key] = min(call["completed"], succeeded.get(key, call["completed"]))
    return sum(succeeded.get(key, inf) <= call["arrived"] for call in calls for key in keys(call))


def _chunks(call: Call) -> list[str]:
    texts = [message_text(message) for message in call["body"]["messages"]]
    return _CHUNK.findall("\n".join(texts)) or texts[-1:]


def check(path: str | Path, *, embedding_encoding: str = "o200k_base") -> dict[str, int]:
    """Compute the totals of a log.

    Args:
        path: The log as `LoopbackProvider.write_log` writes it.
        embedding_encoding: The encoding that counts embedding inputs.
    """
    records = _read(path)
    live = [record for record in records if not record["batch_id"]]
    chat = [call for call in live if call["path"] == CHAT_PATH]
    embeddings = [call for call in live if call["path"] == EMBEDDINGS_PATH]
    paid = [call for call in chat if call["status"] == 200]
    cached = _cached(paid)
    sizes = {call["id"]: len(_prompt(call["body"])) for call in paid}
    for call in embeddings:
        if call["status"] == 200:
            texts = call["body"]["input"]
            inputs = [texts] if isinstance(texts, str) else texts
            sizes[call["id"]] = sum(len(_tokens(text, embedding_encoding)) for text in inputs)
    counted = {
        call["id"]: (call["usage"]["prompt_tokens"], call["cached_tokens"]) for call in live if call["id"] in sizes
    }
    return {
        "calls": len(chat) + len(embeddings),
        "chat_calls": len(chat),
        "embedding_calls": len(embeddings),
        "paid_calls": len(sizes),
        "prompt_tokens": sum(sizes[call["id"]] for call in paid),
        "completion_tokens": sum(len(_tokens(call["reply"])) for call in paid),
        "cached_tokens": sum(cached.values()),
        "embedding_tokens": sum(sizes[call["id"]] for call in embeddings if call["id"] in sizes),
        "in_flight_max": _most_in_flight(chat + embeddings),
        "batch_lines": len(records) - len(live),
        "repeated_prompts": _repeats(
            chat, lambda call: [json.dumps([call["body"]["model"], call["body"]["messages"]])]
        ),
        "repeated_chunks": _repeats(chat, _chunks),
        "mismatches": sum(counted[at] != (size, cached.get(at, 0)) for at, size in sizes.items()),
    }
