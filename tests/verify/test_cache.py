"""The cache: bounded, expiring, shared between threads."""

from concurrent.futures import ThreadPoolExecutor

from meruit.verify.cache import ResultCache


def test_an_entry_lives_as_long_as_it_was_told() -> None:
    now = [0.0]
    cache: ResultCache[int] = ResultCache(10.0, lambda: now[0])
    cache.put("a", 1)
    now[0] = 9.9
    assert cache.get("a") == 1
    now[0] = 10.0
    assert cache.get("a") is None
    assert len(cache) == 0


def test_the_oldest_entry_makes_room() -> None:
    cache: ResultCache[int] = ResultCache(10.0, lambda: 0.0, max_entries=2)
    for number in range(3):
        cache.put(number, number)
    assert [cache.get(number) for number in range(3)] == [None, 1, 2]


def test_many_threads_may_share_it() -> None:
    cache: ResultCache[int] = ResultCache(10.0, lambda: 0.0, max_entries=8)

    def use(number: int) -> None:
        cache.put(number % 16, number)
        cache.get((number + 1) % 16)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(2_000)))
    assert len(cache) == 8
