"""Tokens that prove that a form, or what an address asks for, came from a page of the same session."""

import hmac
from collections.abc import Callable
from hashlib import sha256

NONCE_BYTES = 8
_PURPOSE, _SEAL = b"meruit form", b"meruit posted"


class FormTokens:
    """Issues and checks tokens. Each is different, so that compressed pages reveal nothing of them.

    A token of a session is made with the session's own secret, so that every process of a service accepts it. Without
    a session, all workers are on one machine, and share a secret.
    """

    def __init__(self, entropy: Callable[[int], bytes], shared_secret: bytes | None = None) -> None:
        self._entropy = entropy
        self._own = shared_secret or entropy(32)

    def issue(self, session: str | None) -> str:
        """A new token for a form of this session."""
        nonce = self._entropy(NONCE_BYTES).hex()
        return f"{nonce}.{self._sign(nonce, session)}"

    def accepts(self, token: str, session: str | None) -> bool:
        """Whether the token was issued for this session."""
        nonce, _, signed = token.partition(".")
        return hmac.compare_digest(signed.encode("utf-8", "replace"), self._sign(nonce, session).encode())

    def seal(self, content: str, session: str | None) -> str:
        """A mark that this session posted the content, so that an address with both may act on it."""
        return self._sign(content, session, _SEAL)

    def _sign(self, nonce: str, session: str | None, purpose: bytes = _PURPOSE) -> str:
        secret = self._own if session is None else session.encode("utf-8", "replace")
        return hmac.new(secret, purpose + nonce.encode("utf-8", "replace"), sha256).hexdigest()
