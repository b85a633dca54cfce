"""What users test their agents with: a mistake in a test says what it is."""

import pytest
from pydantic import BaseModel

from meruit.errors import AgentError
from meruit.testing import verdict_of


class Plain(BaseModel):
    """An output that nobody verifies."""

    n: float


class Checked(Plain):
    """One that its own verifier accepts."""

    def verify(self) -> float:
        return self.n


def test_an_output_without_verify_has_no_verdict() -> None:
    with pytest.raises(AgentError, match="Plain"):
        verdict_of(Plain(n=1))


def test_what_no_model_can_hand_in_is_refused() -> None:
    with pytest.raises(AgentError, match="Checked"):
        verdict_of(Checked(n=float("nan")))


def test_a_name_that_no_verifier_is_given_is_told_with_the_nearest() -> None:
    with pytest.raises(AgentError, match="'attempt'"):
        verdict_of(Checked(n=1), atempt=2)
