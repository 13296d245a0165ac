"""Recompute the totals of a provider log from the requests in it.

    python -m tests.support.log_check log.jsonl

This shares no code with the server on purpose, and works another way: the server keeps hashes
of prompt prefixes while it runs, this sorts all prompts afterwards and measures the common
prefix of neighbours. Nothing the server counted is used, except to report calls it counted
differently (`mismatches`, which also makes the exit status 1).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path
from typing import Any

import tiktoken

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
CHUNK_PATTERN = r"(?is)<chunk\b[^>]*>\s*(.*?)\s*</chunk>"
# Faults that spoil neither the text nor the delivery of an answer.
HARMLESS = (None, "hang", "missing_usage")

# Whole texts up to 90,000 characters, else parts that end between a letter and a space.
_PARTS = re.compile(r"(?s).{1,90000}(?:\Z|(?<=[A-Za-z])(?= ))|.{1,90000}")

Call = dict[str, Any]


@cache
def _tokenizer(name: str) -> tiktoken.Encoding:
    shipped = distribution("llama-index-core").locate_file("llama_index/core/_static/tiktoken_cache")
    saved = os.environ.pop("TIKTOKEN_CACHE_DIR", None)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(shipped)
    try:
        return tiktoken.get_encoding(name)
    finally:
        os.environ.pop("TIKTOKEN_CACHE_DIR")
        if saved is not None:
            os.environ["TIKTOKEN_CACHE_DIR"] = saved


def _tokens(text: str, name: str = "o200k_base") -> list[int]:
    return [token for part in _PARTS.findall(text) for token in _tokenizer(name).encode_ordinary(part)]


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _prompt(body: dict[str, Any]) -> list[int]:
    """Return the tokens of a chat prompt, written as the chat format has it."""
    start, end, separator = 200264, 200265, 200266
    tokens: list[int] = []
    if body.get("tools"):
        tokens += _tokens(json.dumps(body["tools"], ensure_ascii=False))
    schema = (body.get("response_format") or {}).get("json_schema")
    if schema:
        tokens += _tokens(json.dumps(schema, ensure_ascii=False))
    for message in body["messages"]:
        text = _content(message)
        if message.get("tool_calls"):
            text += json.dumps(message["tool_calls"], ensure_ascii=False)
        tokens += [start, *_tokens(message["role"]), separator, *_tokens(text), end]
    return [*tokens, start, *_tokens("assistant"), separator]


def _common(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix of two packed prompts, in tokens."""
    low, high = 0, min(len(first), len(second)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if first[: middle * 4] == second[: middle * 4]:
            low = middle
        else:
            high = middle - 1
    return low


def _cacheable(common: int) -> int:
    return common - common % 128 if common >= 1024 else 0


def _best(neighbours: Iterable[tuple[Call, int]], call: Call) -> int:
    """Return the common prefix with the nearest neighbour that was answered before a call."""
    shared = 1 << 62
    for other, common in neighbours:
        shared = min(shared, common)
        if shared < 1024:
            return 0
        if other["completed"] <= call["arrived"]:
            return shared
    return 0


def _cached(paid: Sequence[Call], prompts: dict[int, list[int]]) -> dict[int, int]:
    """Return the cacheable tokens of each paid chat call, by request id."""
    pools: dict[tuple[str, str | None], list[tuple[bytes, Call]]] = defaultdict(list)
    for call in paid:
        packed = struct.pack(f">{len(prompts[call['id']])}I", *prompts[call["id"]])
        pools[call["body"]["model"], call["body"].get("prompt_cache_key")].append((packed, call))
    cached: dict[int, int] = {}
    for pool in pools.values():
        # Neighbours in sorted order share the longest prefixes; farther ones share less.
        pool.sort(key=lambda item: item[0])
        calls = [call for _, call in pool]
        common = [_common(one[0], two[0]) for one, two in pairwise(pool)]
        for place, call in enumerate(calls):
            before = zip(reversed(calls[:place]), reversed(common[:place]), strict=True)
            after = zip(calls[place + 1 :], common[place:], strict=True)
            cached[call["id"]] = _cacheable(max(_best(before, call), _best(after, call)))
    return cached


def cacheable(path: str | Path) -> int:
    """Return the tokens that could have come from the cache, if the first call of each prefix had been answered first.

    Args:
        path: The log as `LoopbackProvider.write_log` writes it.
    """
    records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    pools: dict[tuple[str, str | None], list[bytes]] = defaultdict(list)
    for call in records:
        if call["path"] == CHAT and call["status"] == 200 and not call["batch_id"]:
            prompt = _prompt(call["body"])
            pools[call["body"]["model"], call["body"].get("prompt_cache_key")].append(
                struct.pack(f">{len(prompt)}I", *prompt)
            )
    return sum(_most_cached(sorted(pool)) for pool in pools.values())


def _most_cached(prompts: Sequence[bytes]) -> int:
    total = 0
    shared = [0, *(_cacheable(_common(one, two)) for one, two in pairwise(prompts)), 0]
    family: list[int] = []
    for before, after in pairwise(shared):
        family.append(max(before, after))
        if after == 0:
            # One call of each family must be the first.
            total += sum(family) - max(family)
            family = []
    return total


def _most_in_flight(calls: Sequence[Call]) -> int:
    """Return the most calls that were open at one time."""
    ends = [float("inf") if call["completed"] is None else call["completed"] for call in calls]
    steps = [(call["arrived"], 1) for call in calls] + [(end, -1) for end in ends]
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
    return sum(succeeded.get(key, float("inf")) <= call["arrived"] for call in calls for key in keys(call))


def _prompt_key(call: Call) -> list[str]:
    return [json.dumps([call["body"].get("model"), call["body"].get("messages")], sort_keys=True)]


def _embedding_tokens(call: Call, encoding: str) -> int:
    inputs = call["body"]["input"]
    items = inputs if isinstance(inputs, list) and not isinstance(inputs[0], int) else [inputs]
    return sum(len(_tokens(item, encoding)) if isinstance(item, str) else len(item) for item in items)


def _differs(call: Call, prompt: int, cached: int) -> bool:
    usage = call["usage"] or {}
    return (usage.get("prompt_tokens"), call["cached_tokens"]) != (prompt, cached)


def check(
    path: str | Path, *, chunk_pattern: str = CHUNK_PATTERN, embedding_encoding: str = "o200k_base"
) -> dict[str, int]:
    """Compute the totals of a log.

    Args:
        path: The log as `LoopbackProvider.write_log` writes it.
        chunk_pattern: Finds the chunks in a prompt, as its first group; a prompt without any
            counts by the text of its last message.
        embedding_encoding: The encoding that counts embedding inputs.
    """
    records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    live = [record for record in records if not record["batch_id"]]
    chat = [call for call in live if call["path"] == CHAT]
    embeddings = [call for call in live if call["path"] == EMBEDDINGS]
    paid_chat = [call for call in chat if call["status"] == 200]
    paid_embeddings = [call for call in embeddings if call["status"] == 200]
    prompts = {call["id"]: _prompt(call["body"]) for call in paid_chat}
    cached = _cached(paid_chat, prompts)
    embedded = {call["id"]: _embedding_tokens(call, embedding_encoding) for call in paid_embeddings}
    wrong = sum(_differs(call, len(prompts[call["id"]]), cached[call["id"]]) for call in paid_chat)
    wrong += sum(_differs(call, embedded[call["id"]], 0) for call in paid_embeddings)

    def chunks(call: Call) -> list[str]:
        texts = [_content(message) for message in call["body"].get("messages") or [{}]]
        return re.findall(chunk_pattern, "\n".join(texts)) or texts[-1:]

    return {
        "calls": len(chat) + len(embeddings),
        "chat_calls": len(chat),
        "embedding_calls": len(embeddings),
        "paid_calls": len(paid_chat) + len(paid_embeddings),
        "prompt_tokens": sum(map(len, prompts.values())),
        "completion_tokens": sum(len(_tokens(call["reply"])) for call in paid_chat),
        "cached_tokens": sum(cached.values()),
        "embedding_tokens": sum(embedded.values()),
        "in_flight_max": _most_in_flight(chat + embeddings),
        "batch_lines": len(records) - len(live),
        "repeated_prompts": _repeats(chat, _prompt_key),
        "repeated_chunks": _repeats(chat, chunks),
        "mismatches": wrong,
    }


def main() -> int:
    """Print the totals of a log."""
    parser = argparse.ArgumentParser(description="Recompute the totals of a provider log.")
    parser.add_argument("log", type=Path)
    parser.add_argument("--chunk-pattern", default=CHUNK_PATTERN)
    parser.add_argument("--embedding-encoding", default="o200k_base")
    options = parser.parse_args()
    totals = check(options.log, chunk_pattern=options.chunk_pattern, embedding_encoding=options.embedding_encoding)
    for name, value in totals.items():
        print(f"{name}: {value}")
    return 1 if totals["mismatches"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
