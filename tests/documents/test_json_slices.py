"""Large documents of JSON are parsed in slices, with equal results."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.documents import json_slices
from meruit.documents.json_slices import load_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


@given(VALUES, st.integers(3, 40))
def test_a_large_document_is_read_as_a_small_one(value: Any, block: int) -> None:
    content = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "SMALL_BYTES", 0)
        patch.setattr(json_slices, "BLOCK_BYTES", block)
        assert load_json(content) == load_json(content, json.loads) == value


def test_no_part_of_a_large_document_is_large() -> None:
    content = json.dumps([[number] * 10 for number in range(100_000)]).encode()
    sizes = list[int]()

    def parse(part: bytes) -> Any:
        sizes.append(len(part))
        return json.loads(part)

    assert len(load_json(content, parse)) == 100_000
    assert max(sizes) < 3 * json_slices.BLOCK_BYTES < len(content)


@pytest.mark.parametrize("size", [0, 1 << 30])
@pytest.mark.parametrize("content", [b"[1,", b"", b"[1]]", b"{]", b'["a" 1]'])
def test_what_is_not_json_is_a_value_error(content: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "SMALL_BYTES", size - 1)
    with pytest.raises(ValueError):  # noqa: PT011 - each parser has its own kinds
        load_json(content)
