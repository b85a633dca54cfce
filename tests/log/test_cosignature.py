"""Cosignatures and requests to witnesses: published keys, times and texts, and every small change is noticed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.audit.verify.signatures import WitnessQuorum, check_witnesses
from meruit.errors import NoteError
from meruit.log.cosignature import (
    MAX_TIME_S,
    WitnessKey,
    add_cosignatures,
    cosign,
    cosignatures,
    find_cosignatures,
    witness_key,
)
from meruit.log.merkle import MAX_SIZE
from meruit.log.note import (
    Checkpoint,
    NoteSignature,
    SigningKey,
    VerifierKey,
    open_checkpoint,
    read_signature,
    split_note,
)
from meruit.log.witness_request import MAX_PROOF_LINES, MAX_REQUEST_BYTES, AddCheckpoint

LOG = SigningKey.generate("example.com/log", bytes(range(32)))
ONE = SigningKey.generate("witness.example/w1", bytes(32))
TWO = SigningKey.generate("witness.example/w2", bytes([7] * 32))
TEXT = Checkpoint("example.com/log", 5, bytes(range(32))).text()
NOTE = LOG.sign(TEXT)
KEYS = [witness_key(ONE), witness_key(TWO)]

# The example of c2sp.org/tlog-cosignature: a checkpoint of the Go checksum database's key, and a witness's line.
C2SP_NOTE = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""  # noqa: E501 - as it was published
# The example of c2sp.org/tlog-witness.
C2SP_REQUEST = f"""old 20852014
PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=
jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=
5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=
/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=

{C2SP_NOTE}"""
# A witness in service, from the tests of the reference implementation in Go.
REMORA = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"


def test_a_published_witness_key_is_read_and_written() -> None:
    key = WitnessKey.parse(REMORA)
    assert (key.name, key.key_id, key.vkey) == ("remora.n621.de", "da77ade7", REMORA)


def test_the_published_example_is_read() -> None:
    text, signed = split_note(C2SP_NOTE)
    assert [one.name for one in signed] == ["example.com/behind-the-sofa", "witness.example.com/w1"]
    # Its first eight bytes are the time that the example names.
    assert int.from_bytes(signed[1].signature[:8], "big") == 1679315147
    assert "".join(one.line() for one in signed) == C2SP_NOTE.partition("\n\n")[2]
    request = AddCheckpoint.parse(C2SP_REQUEST.encode())
    assert (request.old, len(request.proof), request.note) == (20852014, 4, C2SP_NOTE)
    assert request.to_bytes() == C2SP_REQUEST.encode()
    assert text == C2SP_NOTE.partition("\n\n")[0] + "\n"


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        "bananas.sigstore.dev+12344556",
        "rekor.sigstore.dev+12345678+THIS_IS_NOT_BASE64!",
        "rekor.sigstore.dev+12345678+AwEB",
        REMORA.replace("da77ade7", "00000000"),
        LOG.vkey,
        REMORA.replace("remora", "remora x"),
        REMORA[:-8],
    ],
)
def test_what_is_not_a_witness_key_is_refused(vkey: str) -> None:
    with pytest.raises(NoteError):
        WitnessKey.parse(vkey)


def test_a_log_key_and_a_witness_key_are_never_taken_for_each_other() -> None:
    with pytest.raises(NoteError):
        VerifierKey.parse(KEYS[0].vkey)
    as_log = SigningKey.generate(ONE.name, bytes(32)).sign(TEXT)
    assert cosignatures(as_log, KEYS) == []


@given(time_s=st.integers(1, MAX_TIME_S), size=st.integers(1, MAX_SIZE), root=st.binary(min_size=32, max_size=32))
def test_a_cosignature_says_who_and_when(time_s: int, size: int, root: bytes) -> None:
    text = Checkpoint("example.com/log", size, root).text()
    note = LOG.sign(text) + cosign(ONE, text, time_s)
    assert [(one.witness, one.time_s) for one in cosignatures(note, KEYS)] == [(KEYS[0], time_s)]
    assert open_checkpoint(note, LOG.verifier).size == size


def test_a_changed_cosignature_does_not_count() -> None:
    line = read_signature(cosign(ONE, TEXT, 1_700_000_000).rstrip("\n"))
    for place in range(len(line.signature)):
        other = bytearray(line.signature)
        other[place] ^= 1
        assert find_cosignatures(TEXT, [msgspec.structs.replace(line, signature=bytes(other))], KEYS) == []
    assert find_cosignatures(TEXT.replace("5", "6"), [line], KEYS) == []
    assert find_cosignatures(TEXT, [msgspec.structs.replace(line, signature=line.signature + b"x")], KEYS) == []
    assert find_cosignatures(TEXT, [msgspec.structs.replace(line, key_id="00000000")], KEYS) == []
    assert len(find_cosignatures(TEXT, [line], KEYS)) == 1


@pytest.mark.parametrize("time_s", [0, -1, MAX_TIME_S + 1])
def test_a_cosignature_without_a_time_is_not_made(time_s: int) -> None:
    with pytest.raises(NoteError):
        cosign(ONE, TEXT, time_s)


def test_one_key_under_two_names_is_one_witness() -> None:
    alias = SigningKey.generate("another.example", bytes(32))
    note = NOTE + cosign(ONE, TEXT, 5) + cosign(alias, TEXT, 6)
    assert len(cosignatures(note, [*KEYS, witness_key(alias)])) == 1


def test_a_newer_cosignature_takes_the_place_of_the_older() -> None:
    note = NOTE
    for signer, time_s in ((ONE, 10), (TWO, 11), (ONE, 12)):
        note = add_cosignatures(note, cosignatures(f"{TEXT}\n{cosign(signer, TEXT, time_s)}", KEYS))
    assert {one.witness.name: one.time_s for one in cosignatures(note, KEYS)} == {ONE.name: 12, TWO.name: 11}
    assert len(split_note(note)[1]) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"old 1",
        b"old 01\n\nnote",
        b"old -1\n\nnote",
        b"new 1\n\nnote",
        b"old 1\nAAAA\n\nnote",
        b"old 1\nnot base64\n\nnote",
        b"old 1\n\xff\n\nnote",
        b"old 1\n" + b"A" * MAX_REQUEST_BYTES,
        b"old 1\n" + (b"KgEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n" * (MAX_PROOF_LINES + 1)) + b"\nnote",
    ],
)
def test_a_body_that_is_not_a_request_is_refused(body: bytes) -> None:
    with pytest.raises(NoteError):
        AddCheckpoint.parse(body)


@pytest.mark.parametrize("time_s", [0, MAX_TIME_S + 1])
def test_a_cosignature_of_an_impossible_time_is_none(time_s: int) -> None:
    key = witness_key(ONE)
    claimed = NoteSignature(key.name, key.key_id, time_s.to_bytes(8, "big") + bytes(64))
    assert key.time_of(TEXT, claimed) is None


@pytest.mark.parametrize(("time_s", "shown"), [(1_800_000_000, "2027-01-15T08:00:00Z"), (MAX_TIME_S, str(MAX_TIME_S))])
def test_the_time_of_a_witness_is_shown_as_far_as_calendars_go(time_s: int, shown: str) -> None:
    note = NOTE + cosign(ONE, TEXT, time_s)
    assert shown in check_witnesses(note, WitnessQuorum((witness_key(ONE),), 1)).message
