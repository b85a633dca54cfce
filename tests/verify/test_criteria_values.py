"""Values that criteria may hold."""

from decimal import Decimal
from typing import Any

import pytest
from tests.verify.engines import WORDS, criterion

from meruit import (
    SuccessCriteria,
)


@pytest.mark.parametrize("word", [1.10, True, Decimal("1.10")])
def test_a_keyword_that_is_not_text_is_refused(word: Any) -> None:
    with pytest.raises(ValueError, match="quote it"):
        SuccessCriteria.model_validate(
            {"criteria": [criterion("contains_keywords", "contains", "contains_all", [word])]}
        )


@pytest.mark.parametrize("text", ["NO", "yes", 0, 1])
def test_required_is_a_boolean(text: Any) -> None:
    with pytest.raises(ValueError, match="required"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "required": text}]})


def test_amounts_beyond_exact_millionths_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8589934592"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "bonus": "9007199254740993.000001"}]})


def test_the_largest_number_may_be_written() -> None:
    made = SuccessCriteria.model_validate({"criteria": [{**WORDS, "metric_type": "numeric", "threshold": 1e300}]})
    assert made.criteria[0].threshold == 1e300


@pytest.mark.parametrize("number", ["1e99999999999999999999", Decimal("sNaN"), Decimal("Infinity")])
def test_a_number_that_is_not_finite_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]})
    with pytest.raises(ValueError, match="expected"):
        SuccessCriteria.model_validate({"criteria": [{**WORDS, "params": {"a": Decimal("sNaN")}}]})
