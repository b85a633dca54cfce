"""Tokens that prove that a form came from a page of the same session."""

import hmac
from collections.abc import Callable
from hashlib import sha256

NONCE_BYTES = 8
_PURPOSE = b"meruit form"


class FormTokens:
    """Issues and checks tokens. Each is different, so that compressed pages reveal nothing of them.

    A token of a session is made with the session's own secret, so that every process of a service accepts it. Without
    a session there is one process on one machine, and its own secret is used.
    """

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._own = entropy(32)

    def issue(self, session: str | None) -> str:
        """A new token for a form of this session."""
        nonce = self._entropy(NONCE_BYTES).hex()
        return f"{nonce}.{self._sign(nonce, session)}"

    def accepts(self, token: str, session: str | None) -> bool:
        """Whether the token was issued for this session."""
        nonce, _, signed = token.partition(".")
        return hmac.compare_digest(signed.encode("utf-8", "replace"), self._sign(nonce, session).encode())

    def _sign(self, nonce: str, session: str | None) -> str:
        secret = self._own if session is None else session.encode("utf-8", "replace")
        return hmac.new(secret, _PURPOSE + nonce.encode("utf-8", "replace"), sha256).hexdigest()
