"""What an answer of governance amounts to."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.governance import (
    MAX_FLAGS,
    MAX_NAME_CHARS,
    WORST,
    Action,
    Disposition,
    Flag,
    GovernanceResult,
    disposition_of,
)

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
    assert GovernanceResult(valid, disposition=given_).conclusion is Disposition(concluded)


@given(st.lists(st.text() | st.builds(Flag, st.text(), st.text(), st.sampled_from(Action)), max_size=5))
def test_flags_are_listed_by_name_in_their_order(flags: list[Flag | str]) -> None:
    names = GovernanceResult(valid=True, flags=flags).names
    assert len(names) == len(flags)
    for name, flag in zip(names, flags, strict=True):
        said = flag if isinstance(flag, str) else flag.rule
        assert len(name) <= MAX_NAME_CHARS
        assert name == said or not said.isprintable() or len(said) > MAX_NAME_CHARS
        assert all(char.isprintable() or unicodedata.category(char) == "Zs" for char in name)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("clear\n\x1b[2Jpaid", "clear\\n\\x1b[2Jpaid"),
        ("\u202edlo\u200b\ufeff", "\\u202edlo\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("x" * 5000, "x" * 200),
        ("\u200b" * 5000, "\\u200b" * 33 + "\\u"),
        ("größer als 3σ", "größer als 3σ"),
    ],
)
def test_a_name_shows_all_that_is_in_it_and_is_short(said: str, name: str) -> None:
    assert GovernanceResult(valid=True, flags=[said, Flag(said, "1", Action.FLAG)]).names == [name, name]


@given(st.booleans(), st.none() | st.sampled_from(Disposition), st.lists(st.sampled_from(Action), max_size=3))
def test_the_worst_of_all_that_was_said_counts(
    valid: bool, disposition: Disposition | None, actions: list[Action]
) -> None:
    flags: list[Flag | str] = ["hold", *(Flag("odd", "1", action) for action in actions)]
    found = GovernanceResult(valid, flags, disposition).conclusion
    said = {Disposition.CLEAR if valid else Disposition.INVALID, disposition, *map(disposition_of, actions)}
    assert found in said | {Disposition.CLEAR}
    assert all(WORST.index(found) >= WORST.index(one) for one in said if one is not None)


@pytest.mark.parametrize(
    ("action", "concluded"),
    [("hold", "hold"), ("refuse", "hold"), ("invalidate", "invalid"), ("flag", "clear"), ("withhold", "clear")],
)
@pytest.mark.parametrize("disposition", ["null", '"clear"'])
def test_a_flag_that_acts_is_not_talked_away(action: str, concluded: str, disposition: str) -> None:
    flags = f'[{{"rule": "x", "version": "1", "action": "{action}"}}]'
    answer = GovernanceResult.from_json(f'{{"valid": true, "disposition": {disposition}, "flags": {flags}}}')
    assert answer.conclusion is Disposition(concluded)


def test_of_many_flags_some_are_kept_and_all_count() -> None:
    few = GovernanceResult(valid=True, flags=["x"] * MAX_FLAGS)
    assert few.limit_flags() is few
    many = GovernanceResult(valid=True, flags=["x"] * MAX_FLAGS + [Flag("y", "1", Action.INVALIDATE)])
    kept = many.limit_flags()
    assert (len(kept.flags), kept.conclusion, many.conclusion) == (MAX_FLAGS, Disposition.INVALID, Disposition.INVALID)


def test_flags_of_either_kind_survive_json() -> None:
    result = GovernanceResult(valid=True, flags=["canary_leak", FLAG], disposition=Disposition.HOLD, confidence=0.5)
    again = GovernanceResult.from_json(result.to_json())
    assert again == result
    assert again.names == ["canary_leak", "anomaly:latency_ms:3sigma"]


def test_an_answer_that_knows_only_valid_and_not_is_enough() -> None:
    assert GovernanceResult.from_json(b'{"valid": true}') == GovernanceResult(valid=True)
    assert GovernanceResult.from_json(b'{"valid": false, "flags": ["x"]}').conclusion is Disposition.INVALID
