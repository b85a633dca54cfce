"""A witness: the requests of a published test run of the reference implementation, and what it must never do."""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from meruit.audit.witness import FORKS, KEY_FILE, LOGS, TrustedLog, Witness, open_witness_key
from meruit.errors import NoteError, WitnessUnusable
from meruit.log.cosignature import cosignatures
from meruit.log.merkle import EMPTY_ROOT, Frontier, consistency_proof, leaf_hash
from meruit.log.note import Checkpoint, SigningKey, VerifierKey, open_checkpoint
from meruit.log.witness_request import AddCheckpoint

NOW_S = 1_700_000_000
LOG = SigningKey.generate("example.com/log", bytes(range(32)))
OTHER_KEY = SigningKey.generate("example.com/log", bytes(32))

# A log with keys and checkpoints that FiloSottile/torchwood's litewitness is tested with.
ORIGIN = "sigsum.org/v1/tree/4d6d8825a6bb689d459628312889dfbb0bcd41b5211d9e1ce768b0ff0309e562"
SIGSUM = VerifierKey(ORIGIN, bytes.fromhex("ffdc2d4d98e4124d3feaf788c0c2f9abfd796083d1f0495437f302ec79cf100f"))
HASHES = [b64encode(bytes([42, number]) + bytes(30)).decode() for number in range(5)]
SIGNED = {
    1: (
        "KgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "UgIom7fPZTqpxWWhyjWduBvTvGVqsokMbqTArsQilegKoFBJQjUFAmQ0+YeSPM3wfUQMFSzVnnNuWRTYrajXpNUbIQY=",
    ),
    3: (
        "RcCI1Nk56ZcSmIEfIn0SleqtV7uvrlXNccFx595Iwl0=",
        "UgIom2VbtIcdFbwFAy1n7s6IkAxIY6J/GQOTuZF2ORV39d75cbAj2aQYwyJre36kezNobZs4SUUdrcawfAB8WVrx6go=",
    ),
    5: (
        "QrtXrQZCCvpIgsSmOsah7HdICzMLLyDfxToMql9WTjY=",
        "UgIomw/EOJmWi0i1FQsOj+etB7F8IccFam/jgd6wzRns4QPVmyEZtdvl1U2KEmLOZ/ASRcWJi0tW90dJWAShei7sDww=",
    ),
}


def sigsum_request(old: int, proof: list[str], size: int, origin: str = ORIGIN, signature: str = "") -> bytes:
    root, signed = SIGNED[size]
    lines = [f"old {old}", *proof, "", origin, str(size), root, "", f"— {origin} {signature or signed}"]
    return "".join(f"{line}\n" for line in lines).encode()


def opened(folder: Path, *logs: TrustedLog) -> Witness:
    signer = open_witness_key(folder, None, lambda count: bytes([3] * count))
    return Witness(folder, signer, logs, lambda: NOW_S)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    made = opened(tmp_path / "witness", TrustedLog(ORIGIN, SIGSUM), TrustedLog.parse(LOG.vkey))
    yield made
    made.close()


def test_the_published_run_has_the_published_answers(witness: Witness) -> None:
    proof = [HASHES[1], HASHES[2]]
    to_five = [HASHES[2], HASHES[3], "wgiIFdZfYNv6WU1OllBKsWnLYIS/DBMqt8Uh/S4OukE=", HASHES[4]]
    from_one = [HASHES[1], "+fUDV+k970B4I3uKrqJM4aP1lloPZP8mvr2Z4wRw2LI=", HASHES[4]]
    damaged = SIGNED[3][1].replace("UgIom2Vb", "UgIom2Vc")
    asked = [
        (sigsum_request(0, [], 1), 200),
        (sigsum_request(1, proof, 3, signature=damaged), 403),
        # The reference answered 403 before the protocol said 404.
        (sigsum_request(1, proof, 3, origin=ORIGIN[:-1] + "3"), 404),
        (sigsum_request(1, [], 3), 422),
        (sigsum_request(1, [HASHES[1], HASHES[2].replace("AAA=", "ABA=")], 3), 422),
        (sigsum_request(1, proof, 3), 200),
        (sigsum_request(1, from_one, 5), 409),
        (sigsum_request(3, to_five, 5), 200),
        (sigsum_request(0, [], 5), 409),
        (sigsum_request(5, [], 5), 200),
        (sigsum_request(5, [], 3), 400),
    ]
    answers = [(witness.add_checkpoint(body), expected) for body, expected in asked]
    assert [int(answer.status) for answer, _ in answers] == [expected for _, expected in answers]
    known = [(answer.body, answer.content_type) for answer, _ in answers if answer.status == 409]
    assert known == [("3\n", "text/x.tlog.size"), ("5\n", "text/x.tlog.size")]


LEAVES = [leaf_hash(bytes([number])) for number in range(20)]


def subtree(start: int, level: int) -> bytes:
    return Frontier(0, ()).extend(LEAVES[start : start + (1 << level)]).root()


def note_of(size: int, signer: SigningKey = LOG, *, leaves: list[bytes] = LEAVES) -> str:
    root = Frontier(0, ()).extend(leaves[:size]).root()
    return signer.sign(Checkpoint(LOG.name, size, root).text())


def ask(witness: Witness, old: int, size: int, note: str | None = None) -> tuple[int, str]:
    proof = consistency_proof(old, size, subtree) if old <= size else []
    reply = witness.add_checkpoint(AddCheckpoint(old, proof, note or note_of(size)).to_bytes())
    return int(reply.status), reply.body


def test_a_cosignature_is_valid_and_is_served_again(witness: Witness) -> None:
    status, line = ask(witness, 0, 7)
    (found,) = cosignatures(note_of(7) + line, [witness.key])
    assert (status, found.time_s) == (200, NOW_S)
    kept = witness.latest(sha256(LOG.name.encode()).hexdigest())
    assert kept == note_of(7) + line
    assert open_checkpoint(kept, LOG.verifier).size == 7
    assert witness.latest(sha256(ORIGIN.encode()).hexdigest()) is None
    assert witness.latest("../witness-key.pem") is None


def test_a_witness_never_cosigns_two_histories(witness: Witness, tmp_path: Path) -> None:
    other = [leaf_hash(b"other"), *LEAVES[1:]]
    assert ask(witness, 0, 7)[0] == 200
    assert ask(witness, 7, 7, note_of(7, leaves=other))[0] == 422
    assert ask(witness, 7, 9, note_of(9, leaves=other))[0] == 422
    assert ask(witness, 0, 3) == (409, "7\n")
    assert ask(witness, 3, 3) == (409, "7\n")
    # Two signed checkpoints of one size convict the log.
    (fork,) = (tmp_path / "witness" / FORKS).iterdir()
    assert fork.read_text() == note_of(7, leaves=other)
    assert ask(witness, 7, 9)[0] == 200


def test_a_witness_remembers_across_a_restart(tmp_path: Path) -> None:
    log = TrustedLog.parse(LOG.vkey)
    first = opened(tmp_path, log)
    assert ask(first, 0, 9)[0] == 200
    with pytest.raises(WitnessUnusable):
        opened(tmp_path, log)
    first.close()
    again = opened(tmp_path, log)
    assert again.key == first.key
    assert ask(again, 0, 9) == (409, "9\n")
    again.close()


def test_a_checkpoint_of_an_unknown_key_is_forbidden(witness: Witness) -> None:
    assert ask(witness, 0, 4, note_of(4, OTHER_KEY))[0] == 403
    # Signatures of keys that it does not know are left out of what it keeps.
    both = note_of(4) + note_of(4, OTHER_KEY).partition("\n\n")[2]
    assert ask(witness, 0, 4, both)[0] == 200
    assert OTHER_KEY.key_id not in str(witness.latest(sha256(LOG.name.encode()).hexdigest()))


def test_an_empty_log_has_the_empty_root(witness: Witness) -> None:
    wrong = LOG.sign(Checkpoint(LOG.name, 1, bytes(32)).text().replace("\n1\n", "\n0\n"))
    assert ask(witness, 0, 0, wrong)[0] == 422
    right = LOG.sign(Checkpoint(LOG.name, 0, EMPTY_ROOT).text())
    assert ask(witness, 0, 0, right)[0] == 200


@pytest.mark.parametrize("body", [b"", b"old 0\n\n", b"old 0\n\nnot a note", note_of(3).encode()])
def test_garbage_is_a_bad_request(witness: Witness, body: bytes) -> None:
    assert witness.add_checkpoint(body).status == 400


def test_a_checkpoint_that_cannot_be_read_is_a_bad_request(witness: Witness) -> None:
    assert ask(witness, 0, 0, LOG.sign(f"{LOG.name}\nmany\nAAAA\n"))[0] == 400


def test_a_witness_that_lost_its_memory_does_not_start(tmp_path: Path) -> None:
    opened(tmp_path, TrustedLog.parse(LOG.vkey)).close()
    (tmp_path / LOGS).rmdir()
    with pytest.raises(WitnessUnusable):
        open_witness_key(tmp_path, None, bytes)


def test_a_damaged_memory_is_not_overwritten(witness: Witness, tmp_path: Path) -> None:
    ask(witness, 0, 3)
    (file,) = (tmp_path / "witness" / LOGS).iterdir()
    file.write_text(note_of(1))
    with pytest.raises(WitnessUnusable):
        ask(witness, 3, 4)
    assert file.read_text() == note_of(1)


def test_a_witness_keeps_its_name_and_its_key_secret(tmp_path: Path) -> None:
    signer = open_witness_key(tmp_path / "w", "witness.example/w1", bytes)
    assert open_witness_key(tmp_path / "w", "witness.example/w1", bytes).vkey == signer.vkey
    assert (tmp_path / "w" / KEY_FILE).stat().st_mode & 0o777 == 0o600
    with pytest.raises(WitnessUnusable):
        open_witness_key(tmp_path / "w", "another", bytes)
    with pytest.raises(WitnessUnusable):
        open_witness_key(tmp_path / "x", "a name with spaces", bytes)
    (tmp_path / "w" / KEY_FILE).write_text("no key")
    with pytest.raises(WitnessUnusable):
        open_witness_key(tmp_path / "w", None, bytes)


def test_an_origin_may_differ_from_the_name_of_the_key() -> None:
    golang = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    assert TrustedLog.parse(f"go.sum database tree={golang}").origin == "go.sum database tree"
    assert TrustedLog.parse(golang).origin == "sum.golang.org"
    with pytest.raises(NoteError):
        TrustedLog.parse("go.sum=nothing")


def test_the_go_checksum_database_can_be_witnessed(tmp_path: Path) -> None:
    """A checkpoint that sum.golang.org signed."""
    golang = "go.sum database tree=sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    made = opened(tmp_path, TrustedLog.parse(golang))
    note = (
        "go.sum database tree\n35225469\nvt5T6GaLCXvyHFl9VUvvItR43XZxfLgftEcTyO3eJCQ=\n\n— sum.golang.org "
        "Az3grpukl5AXaVfYkLiDGORx/DN2nlcS5kZHR5uYOBV2KA2HgXpD+gu9HHONebHLAyaKbbTM75QTtPydhKCExixSfwQ=\n"
    )
    assert made.add_checkpoint(AddCheckpoint(0, [], note).to_bytes()).status == 200
    made.close()
