"""Entries of the log: one byte form, whoever writes it."""

from hypothesis import given
from hypothesis import strategies as st

from meruit.log.entries import VerdictEntry, entry_bytes, read_entry, write_verdict

TEXTS = st.text(max_size=12) | st.sampled_from(['"', "\\", "\u2028", "a b:c-d.e", "\n", "é", "\x7f"])


@given(TEXTS, TEXTS, TEXTS, st.booleans(), st.integers(-9, 9), st.sampled_from(["1", "2/3"]))
def test_a_verdict_written_by_hand_is_the_encoders(
    tenant: str, contract: str, reason: str, success: bool, number: int, score: str
) -> None:
    fields = (
        *("2026-01-01T00:00:00.000000Z", tenant, "out_1", contract, 3, 2),
        *("ab" * 32, 5, 7, "cd" * 32, "partial", success, score, number, -number, reason),
    )
    written = write_verdict(*fields)
    assert written == entry_bytes(VerdictEntry(*fields))
    assert read_entry(written) == VerdictEntry(*fields)
