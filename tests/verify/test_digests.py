"""Digests of work and criteria: equal content has one digest, other content another."""

from types import MappingProxyType
from typing import Any

import pytest
from tests.verify.engines import WORDS

from meruit import (
    VerificationEngine,
)
from meruit.model.canonical import digest, payload_digest


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), (0.5, "0.5"), (1, True), (10**30, str(10**30)), (0.5, {"$decimal": "0.5"})]
)
def test_a_number_and_its_text_have_different_digests(one: Any, other: Any) -> None:
    assert digest({"a": one}) != digest({"a": other})


def test_nan_and_null_are_different_work() -> None:
    assert payload_digest({"a": None}) is not None
    assert payload_digest({"a": float("nan")}) is None
    assert payload_digest({"a": [{"b": (float("nan"),)}], "c": None}) is None


def test_large_integers_have_digests() -> None:
    assert payload_digest({"a": 10**30}) is not None
    assert payload_digest({"a": 10**30}) != payload_digest({"a": 10**30 + 1})


def test_a_read_only_mapping_is_digested_like_any_other() -> None:
    result = VerificationEngine().verify_sync("c", {}, MappingProxyType({"text": "a"}), {"criteria": [WORDS]}, {})
    assert result.output_digest == payload_digest({"text": "a"})


def test_keys_that_are_not_text_are_not_json() -> None:
    with pytest.raises(TypeError):
        digest({1: "a"})
