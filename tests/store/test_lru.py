"""A bounded map forgets what was not used for longest, whoever shares it."""

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from meruit.store.lru import LruCache

KEYS = st.integers(0, 9)


@given(st.lists(st.tuples(st.sampled_from(["get", "put", "remove"]), KEYS), max_size=60), st.integers(1, 5))
def test_it_holds_the_keys_that_were_used_last(calls: list[tuple[str, int]], limit: int) -> None:
    cache = LruCache[int, str](limit)
    used: list[int] = []
    for call, key in calls:
        if call == "get":
            assert cache.get(key) == (str(key) if key in used else None)
            used = [*(one for one in used if one != key), key] if key in used else used
        elif call == "put":
            cache.put(key, str(key))
            used = [*(one for one in used if one != key), key][-limit:]
        else:
            cache.remove(key)
            used = [one for one in used if one != key]
        assert len(cache) == len(used)
    assert [key for key in range(10) if cache.get(key) is not None] == sorted(used)


@given(st.lists(st.binary(max_size=8), max_size=30))
def test_the_weights_of_its_values_stay_below_the_limit(values: list[bytes]) -> None:
    cache = LruCache[int, bytes](100, max_weight=20, weigh=len)
    for number, value in enumerate(values):
        cache.put(number % 7, value)
        held = [one for key in range(7) if (one := cache.get(key)) is not None]
        assert sum(map(len, held)) <= 20
        assert value in held


def test_a_value_that_is_too_heavy_is_not_kept() -> None:
    cache = LruCache[str, bytes](100, max_weight=3, weigh=len)
    cache.put("a", b"1234")
    assert (cache.get("a"), len(cache)) == (None, 0)
    cache.put("b", b"123")
    assert cache.get("b") == b"123"
    cache.clear()
    cache.put("c", b"123")
    assert (cache.get("b"), cache.get("c")) == (None, b"123")


def test_a_value_is_made_once_even_when_it_is_none() -> None:
    cache, made = LruCache[str, str | None](2), list[str]()
    for key in ("a", "a", "b", "a"):
        assert cache.get_or_make(key, lambda key=key: made.append(key)) is None  # type: ignore[misc]  # a default binds the loop's
    assert made == ["a", "b"]


def test_threads_share_one() -> None:
    cache = LruCache[int, int](8)

    def use(number: int) -> bool:
        return all(cache.get_or_make(key % 16, lambda key=key: key % 16) == key % 16 for key in range(number, 2000))  # type: ignore[misc]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(4)))
    assert len(cache) == 8
