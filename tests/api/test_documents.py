"""Bodies as the parsers of files take them."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meruit.api.routes.benchmarks import BenchmarkRequest
from meruit.api.routes.work import TermsRequest, WorkRequest
from meruit.api.wire.common import to_document

OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.lists(st.none(), max_size=2), max_size=3)


@given(OBJECTS, st.none() | OBJECTS, st.sampled_from(["", "text"]), st.booleans())
def test_a_document_is_what_was_sent(given: dict[str, Any], private: Any, description: str, has_terms: bool) -> None:
    terms = TermsRequest(currency="EUR") if has_terms else None
    body = WorkRequest(title="t", description=description, input=given, private=private, terms=terms)
    assert to_document(body) == msgspec.to_builtins(body)


def test_json_in_a_document_is_not_copied() -> None:
    tasks: list[dict[str, Any]] = [{"id": "t", "seed": {"rows": [[]]}}]
    body = BenchmarkRequest(benchmark="demo", tasks=tasks)
    assert to_document(body) == msgspec.to_builtins(body)
    assert to_document(body)["tasks"] is tasks
