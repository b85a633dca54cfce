"""The chain of keys: the first admits itself, all later ones need a key in force or the root."""

import msgspec
import pytest

from meruit.log.entries import KeyEntry, entry_bytes, read_entry
from meruit.log.key_chain import ROOT, KeyChain, admit_key
from meruit.log.note import SigningKey

NAME = "log"
ONE, TWO, THREE = (SigningKey.generate(NAME, bytes([number] * 32)) for number in (1, 2, 3))
MASTER, OTHER_MASTER = (SigningKey.generate("master", bytes([number] * 32)) for number in (4, 5))
FIRST = KeyEntry("now", ONE.vkey)


def by(signer: SigningKey, vkey: str, *, role: str = "", retires: str = "", origin: str = NAME) -> KeyEntry:
    return admit_key(signer, "now", origin, vkey, role=role, retires=retires)


def chain(*entries: KeyEntry) -> KeyChain:
    made = KeyChain(NAME)
    for index, entry in enumerate(entries):
        assert made.admit(index, entry) == ""
    return made


def test_an_entry_of_the_first_key_is_written_as_ever() -> None:
    assert entry_bytes(FIRST) == b'{"at":"now","kind":"key","vkey":"%b"}' % ONE.vkey.encode()
    assert read_entry(entry_bytes(by(ONE, TWO.vkey))) == by(ONE, TWO.vkey)


def test_keys_are_admitted_by_keys_in_force_and_by_the_root() -> None:
    found = chain(FIRST, by(ONE, TWO.vkey), by(TWO, MASTER.vkey, role=ROOT), by(MASTER, THREE.vkey))
    assert [key.vkey for key in found.in_force] == [ONE.vkey, TWO.vkey, THREE.vkey]
    assert found.root == MASTER.verifier
    assert not found.is_in_force(MASTER.vkey)
    # Only the root replaces the root.
    assert found.admit(9, by(ONE, OTHER_MASTER.vkey, role=ROOT))
    assert found.admit(9, by(MASTER, OTHER_MASTER.vkey, role=ROOT)) == ""


@pytest.mark.parametrize(
    "entry",
    [
        KeyEntry("now", TWO.vkey),
        by(TWO, TWO.vkey),
        by(THREE, TWO.vkey),
        by(ONE, TWO.vkey, origin="other"),
        by(ONE, "nothing"),
        by(ONE, SigningKey.generate("other", bytes(32)).vkey),
        by(ONE, TWO.vkey, role="king"),
        by(ONE, TWO.vkey, retires=THREE.vkey),
        msgspec.structs.replace(by(ONE, TWO.vkey), vkey=THREE.vkey),
        msgspec.structs.replace(by(ONE, TWO.vkey), retires=ONE.vkey),
        msgspec.structs.replace(by(ONE, TWO.vkey), role=ROOT),
        msgspec.structs.replace(by(ONE, TWO.vkey), signature="AAAA"),
        msgspec.structs.replace(by(ONE, TWO.vkey), signature="not base64"),
    ],
)
def test_a_key_outside_the_chain_is_not_admitted(entry: KeyEntry) -> None:
    found = chain(FIRST)
    assert found.admit(1, entry)
    assert [key.vkey for key in found.in_force] == [ONE.vkey]


def test_only_the_first_entry_admits_by_itself() -> None:
    assert KeyChain(NAME).admit(1, FIRST)
    assert KeyChain(NAME).admit(0, by(ONE, ONE.vkey))
    assert KeyChain(NAME).admit(0, KeyEntry("now", MASTER.vkey, role=ROOT))


def test_a_retired_key_signs_its_last_transaction_only() -> None:
    found = chain(FIRST, by(ONE, TWO.vkey, retires=ONE.vkey))
    assert not found.is_in_force(ONE.vkey)
    assert {key.vkey for key in found.signers_at(2)} == {ONE.vkey, TWO.vkey}
    assert {key.vkey for key in found.signers_at(3)} == {TWO.vkey}
    assert found.admit(2, by(ONE, THREE.vkey))


def test_a_signing_key_retires_only_itself() -> None:
    found = chain(FIRST, by(ONE, TWO.vkey))
    assert found.admit(2, by(ONE, THREE.vkey, retires=TWO.vkey))
    assert found.is_in_force(TWO.vkey)
    assert found.admit(2, by(ONE, THREE.vkey, retires=ONE.vkey)) == ""
