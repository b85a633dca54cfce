"""What an answer of governance amounts to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.governance import Action, Disposition, Flag, GovernanceResult

FLAG = Flag("anomaly:latency_ms:3sigma", "1", Action.FLAG, "latency_ms", {"z": 3.5}, 3.5)


@pytest.mark.parametrize(
    ("valid", "disposition", "concluded"),
    [
        (True, None, "clear"),
        (True, "clear", "clear"),
        (True, "hold", "hold"),
        (True, "invalid", "invalid"),
        (False, None, "invalid"),
        (False, "clear", "invalid"),
        (False, "hold", "invalid"),
        (False, "invalid", "invalid"),
    ],
)
def test_where_validity_and_disposition_disagree_the_worse_counts(
    valid: bool, disposition: str | None, concluded: str
) -> None:
    given_ = None if disposition is None else Disposition(disposition)
    assert GovernanceResult(valid, disposition=given_).concluded is Disposition(concluded)


@given(st.lists(st.text() | st.builds(Flag, st.text(), st.text(), st.sampled_from(Action)), max_size=5))
def test_flags_are_listed_by_name_in_their_order(flags: list[Flag | str]) -> None:
    names = GovernanceResult(valid=True, flags=flags).names
    assert len(names) == len(flags)
    assert all(name == (flag if isinstance(flag, str) else flag.rule) for name, flag in zip(names, flags, strict=True))


def test_flags_of_either_kind_survive_json() -> None:
    result = GovernanceResult(valid=True, flags=["canary_leak", FLAG], disposition=Disposition.HOLD, confidence=0.5)
    again = GovernanceResult.from_json(result.to_json())
    assert again == result
    assert again.names == ["canary_leak", "anomaly:latency_ms:3sigma"]


def test_an_answer_that_knows_only_valid_and_not_is_enough() -> None:
    assert GovernanceResult.from_json(b'{"valid": true}') == GovernanceResult(valid=True)
    assert GovernanceResult.from_json(b'{"valid": false, "flags": ["x"]}').concluded is Disposition.INVALID
