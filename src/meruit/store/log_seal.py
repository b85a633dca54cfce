"""The seal on the end of the log: a database writer alone cannot add entries, with all hashes right.

Processes of one data folder share its signing key. They seal with a code that is derived from it, which costs little.
Machines with keys of their own cannot check each other's codes: where several keys may sign, the seal is a signature.
"""

import hmac
from hashlib import sha256

from meruit.log.key_chain import KeyChain
from meruit.log.merkle import Frontier
from meruit.log.note import SigningKey, VerifierKey, signed_content

_PURPOSE = "meruit-log-seal-v1"
_CODE, _SIGNATURE = b"c", b"s"
"""What a seal begins with."""


def seal_end(signer: SigningKey, frontier: Frontier, *, is_shared: bool) -> bytes:
    """The seal of a log that ends there; `is_shared` where other keys may sign it too."""
    content = _content(signer.name, frontier)
    if is_shared:
        return _SIGNATURE + signer.sign_bytes(content)
    return _CODE + hmac.digest(signer.derive_secret(_PURPOSE), content, sha256)


def is_sealed_by_us(seal: bytes, signer: SigningKey, frontier: Frontier) -> bool:
    """Whether a process with the same signing key made the seal."""
    if seal.startswith(_CODE):
        return hmac.compare_digest(seal, seal_end(signer, frontier, is_shared=False))
    return _is_sealed_by(seal, signer.verifier, frontier)


def is_possibly_sealed(seal: bytes, signer: SigningKey, frontier: Frontier, keys: KeyChain) -> bool:
    """Whether a key that the log admits made the seal, as far as this process can tell.

    A process whose own key is not in force cannot check a code. It writes nothing but the admission of its key.
    """
    if is_sealed_by_us(seal, signer, frontier):
        return True
    if seal.startswith(_CODE):
        return not keys.is_in_force(signer.vkey)
    return any(_is_sealed_by(seal, key, frontier) for key in keys.signers_until(frontier.size))


def _is_sealed_by(seal: bytes, key: VerifierKey, frontier: Frontier) -> bool:
    return seal.startswith(_SIGNATURE) and key.verify(_content(key.name, frontier), seal[1:])


def _content(origin: str, frontier: Frontier) -> bytes:
    return signed_content("log end", origin, frontier.size, frontier.to_bytes().hex())
