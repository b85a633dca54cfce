"""Commitments: bound to one content, silent about it without the salt."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.log.commitment import SALT_BYTES, commitment, commitment_to, matches

salts = st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES)


@given(salts, st.binary())
def test_a_commitment_is_kept_by_its_content(salt: bytes, content: bytes) -> None:
    assert matches(commitment(salt, content), salt, content)


@given(salts, salts, st.binary(), st.binary())
def test_no_other_salt_or_content_keeps_it(salt: bytes, other_salt: bytes, content: bytes, other: bytes) -> None:
    committed = commitment(salt, content)
    assert matches(committed, other_salt, content) is (salt == other_salt)
    assert matches(committed, salt, other) is (content == other)
    assert not matches(committed.upper() + " ", salt, content)


@given(salts, st.binary(min_size=1))
def test_salt_and_content_cannot_trade_a_byte(salt: bytes, content: bytes) -> None:
    committed = commitment(salt, content)
    assert not matches(committed, salt + content[:1], content[1:])
    assert not matches(committed, salt[:-1], salt[-1:] + content)


@pytest.mark.parametrize("length", [0, SALT_BYTES - 1, SALT_BYTES + 1])
def test_a_salt_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=str(length)):
        commitment(bytes(length), b"yes")
    with pytest.raises(ValueError, match=str(length)):
        commitment_to(bytes(length), sha256(b"yes").hexdigest())


def test_what_could_be_guessed_has_another_commitment_each_time() -> None:
    assert commitment(bytes(SALT_BYTES), b"yes") != commitment(b"\x01" * SALT_BYTES, b"yes")


def test_the_hash_is_over_purpose_salt_and_the_hash_of_the_content() -> None:
    salt, inner = bytes(range(SALT_BYTES)), sha256(b"content")
    assert commitment(salt, b"content") == sha256(b"meruit-blob-v1\n" + salt + inner.digest()).hexdigest()
    assert commitment_to(salt, inner.hexdigest()) == commitment(salt, b"content")
