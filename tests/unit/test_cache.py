"""The bounded cache keeps the entries that were used last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from llama_index_contextual._utils.cache import LRUCache


def test_the_least_recently_used_entry_is_dropped() -> None:
    cache = LRUCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_concurrent_threads_do_not_exceed_the_size() -> None:
    cache = LRUCache[int, int](10)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: (cache.put(n % 40, n), cache.get(n % 7)), range(2_000)))
    assert len(cache) == 10


def test_the_least_recently_used_values_are_dropped_until_the_rest_is_light_enough() -> None:
    cache = LRUCache[str, str](5, len)
    for value in ("aa", "b", "cc"):
        cache.put(value, value)
    assert cache.get("aa") == "aa"
    cache.put("dd", "dd")
    assert [cache.get(key) for key in ("aa", "b", "cc", "dd")] == ["aa", None, None, "dd"]
    cache.put("dd", "ddd")
    assert (cache.get("aa"), cache.get("dd")) == ("aa", "ddd")
    cache.put("e", "e" * 6)
    assert len(cache) == 0


def test_several_entries_are_looked_up_and_used_together() -> None:
    cache = LRUCache[str, int](3)
    for key in "abc":
        cache.put(key, ord(key))
    assert cache.get_all(["c", "d", "a"]) == [99, None, 97]
    cache.put("e", 101)
    assert cache.get_all("abce") == [97, None, 99, 101]
