"""The metrics of several workers as one text of Prometheus."""

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from meruit.api.processes.exposition import merge_expositions


def _exposed(label: str, count: int) -> str:
    own = CollectorRegistry()
    counter = Counter("work", "Work {done}.", ("tenant",), registry=own)
    counter.labels(label).inc(count)
    Gauge("depth", "# HELP of all", registry=own).set(count)
    Histogram("seconds", "Time.", ("tenant",), buckets=(1, 2), registry=own).labels(label).observe(1.5)
    runs = Gauge("runs", "Runs.", ("state",), registry=own)
    if count:
        runs.labels("open").set(count)
    return generate_latest(own).decode()


Sample = tuple[str, tuple[tuple[str, str], ...], float]


def _samples(text: str) -> dict[str, list[Sample]]:
    return {
        family.name: [
            (one.name, tuple(sorted(one.labels.items())), one.value)
            for one in family.samples
            if not one.name.endswith("_created")
        ]
        for family in text_string_to_metric_families(text)
    }


@given(label=st.text(max_size=20), counts=st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_each_sample_is_kept_with_its_worker(label: str, counts: list[int]) -> None:
    texts = {number: _exposed(label, count) for number, count in enumerate(counts, 1)}
    merged = _samples(merge_expositions(texts))
    for name in ("work", "depth", "seconds", "runs"):
        expected = [
            (sample, tuple(sorted([*labels, ("worker", str(number))])), value)
            for number, text in texts.items()
            for sample, labels, value in _samples(text)[name]
        ]
        assert merged[name] == expected


def test_a_family_is_described_once_and_workers_that_are_silent_are_named() -> None:
    text = merge_expositions({1: _exposed("a", 2), 2: None, 3: _exposed("a", 0)}, of_all=frozenset({"runs"}))
    described = re.findall(r"^# (?:HELP|TYPE) (\S+)", text, re.MULTILINE)
    assert all(described.count(name) == 2 for name in described)
    found = _samples(text)
    assert found["meruit_worker_up"] == [
        ("meruit_worker_up", (("worker", str(number)),), up) for number, up in ((1, 1.0), (2, 0.0), (3, 1.0))
    ]
    assert found["runs"] == [("runs", (("state", "open"),), 2.0)]
