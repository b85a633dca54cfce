"""Answers of governance: anything but a clear yes fails closed."""

import asyncio
from typing import Any

import pytest
from tests.verify.engines import WORDS, Governance, Says, verify

from meruit import (
    GovernanceStatus,
    VerificationEngine,
)


@pytest.mark.parametrize(
    "answer", [Says("false", []), Says(1, []), Says(None, []), asyncio.CancelledError(), Says(True, 7)]
)
def test_an_unclear_answer_of_governance_means_review(answer: Any) -> None:
    result = verify(WORDS, output={"text": "a"}, engine=VerificationEngine(governance=Governance(answer)))
    assert (result.success, result.governance) == (False, GovernanceStatus.REVIEW)


def test_one_flag_may_be_text_and_metrics_are_not_changed() -> None:
    engine = VerificationEngine(governance=Governance(Says(False, "fraud")))
    result = verify(WORDS, output={"text": "a"}, engine=engine)
    assert (result.governance_flags, result.metrics) == (["fraud"], {"word_count": 1})
