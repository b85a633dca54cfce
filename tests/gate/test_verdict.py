"""What a verifier says survives every journey: between processes, into copies, onto paper."""

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import VerificationExhausted, VerificationRejected
from meruit.gate.verdict import (
    Acceptance,
    Rejection,
    SystemErrorVerdict,
    VerifierVerdict,
    failure_message,
    parse_verdict,
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
metadata = st.dictionaries(st.text(), json_values, max_size=4)
said: st.SearchStrategy[VerifierVerdict] = st.one_of(
    st.builds(Acceptance, json_values),
    st.builds(Rejection, st.text(), st.none() | st.text(), st.booleans(), metadata),
    st.builds(SystemErrorVerdict, st.text(), st.booleans()),
)


class TestsFailed(VerificationRejected):
    """An author's own, with a signature of its own."""

    __test__ = False

    def __init__(self, *, failed: list[str]) -> None:
        super().__init__(f"{len(failed)} failed", code="tests_failed", metadata={"failed": failed})
        self.failed = failed


def journeys(raised: VerificationRejected) -> list[VerificationRejected]:
    pickled = [pickle.loads(pickle.dumps(raised, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    return [*pickled, copy.copy(raised), copy.deepcopy(raised)]


@given(st.text(), st.booleans(), st.none() | st.text(), metadata)
def test_a_rejection_travels_whole(message: str, retryable: bool, code: str | None, metadata: dict[str, Any]) -> None:
    raised = VerificationRejected(message, retryable, code, metadata)
    for arrived in journeys(raised):
        assert type(arrived) is VerificationRejected
        assert (arrived.message, arrived.retryable, arrived.code, arrived.metadata) == (
            message,
            retryable,
            code,
            metadata,
        )
        assert arrived.args == (message,)
        assert str(arrived) == message


def test_an_authors_own_rejection_travels_whole_with_its_notes() -> None:
    raised = TestsFailed(failed=["test_a"])
    raised.add_note("seen on the second machine")
    for arrived in journeys(raised):
        assert isinstance(arrived, TestsFailed)
        assert (arrived.message, arrived.code, arrived.failed) == ("1 failed", "tests_failed", ["test_a"])
        assert arrived.__notes__ == ["seen on the second machine"]


def test_an_exhausted_verification_travels_whole() -> None:
    raised = VerificationExhausted("attempts", 5, "3 tests failed", "tests_failed")
    arrived = pickle.loads(pickle.dumps(raised))
    assert str(arrived) == str(raised)
    assert all(value in str(arrived) for value in ("attempts", "5", "3 tests failed"))
    assert vars(arrived) == vars(raised)


def test_a_deep_copy_shares_nothing() -> None:
    raised = VerificationRejected("no", metadata={"failed": ["a"]})
    copy.deepcopy(raised).metadata["failed"].append("b")
    assert raised.metadata == {"failed": ["a"]}


def test_later_changes_of_metadata_are_not_shown() -> None:
    told = {"failed": 1}
    raised = VerificationRejected("no", metadata=told)
    told["failed"] = 2
    assert raised.metadata == {"failed": 1}


def test_a_bare_rejection_may_be_mended() -> None:
    raised = VerificationRejected("no")
    assert (raised.retryable, raised.code, raised.metadata) == (True, None, {})


@given(said)
def test_what_was_said_is_read_back_as_it_was_kept(one: VerifierVerdict) -> None:
    assert parse_verdict(one.to_json()) == one


@pytest.mark.parametrize("written", [b"{}", b"null", b'{"outcome":"maybe"}', b'{"outcome":"rejected"}'])
def test_what_no_verifier_says_is_not_read(written: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        parse_verdict(written)


@pytest.mark.parametrize(
    ("verdict", "message"),
    [(Acceptance(), None), (Rejection("too short"), "too short"), (SystemErrorVerdict("no answer"), "no answer")],
)
def test_only_a_pass_has_no_failure_message(verdict: VerifierVerdict, message: str | None) -> None:
    assert failure_message(verdict) == message
