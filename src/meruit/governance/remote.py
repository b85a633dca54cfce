"""Somebody else's governance, asked over HTTP with the contract of our own."""

import asyncio
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec

from meruit.errors import OutboundFailed, OutboundRefused, Unreachable
from meruit.model.governance import GovernanceResult
from meruit.sources.http_guard import TIMEOUT_S, Network, Outbound

OK = 200


class RemoteGovernance:
    """A GovernanceClient; POSTs `contract_id, claimed_metrics, execution_context`, and reads a GovernanceResult."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        allowed_networks: Sequence[Network] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._networks = tuple(allowed_networks)
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None
        self._making = threading.Lock()

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Its answer; raises Unreachable for none, and for one that cannot be read."""
        question = {
            "contract_id": contract_id,
            "claimed_metrics": dict(claimed_metrics),
            "execution_context": dict(execution_context),
        }
        try:
            asked = msgspec.json.encode(question)
            # Reading all certificates takes long enough to hold up everybody else.
            tls = self._tls or await asyncio.to_thread(self._load_tls_context)
            # A client for each question: it belongs to the event loop of whoever asks.
            async with Outbound(allowed_networks=self._networks, timeout_s=self._timeout_s, tls=tls) as outbound:
                reply = await outbound.post(self._url, asked, self._headers)
        except (OutboundFailed, OutboundRefused, TypeError, UnicodeEncodeError) as problem:
            raise Unreachable(f"governance could not be asked: {problem}") from None
        if reply.status != OK:
            raise Unreachable(f"governance answered with status {reply.status}")
        try:
            return msgspec.json.decode(reply.body, type=GovernanceResult).limit_flags()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise Unreachable(f"governance gave an answer that cannot be read: {problem}") from None

    def _load_tls_context(self) -> ssl.SSLContext:
        """Whom we trust, read once."""
        with self._making:
            if self._tls is None:
                self._tls = httpx.create_ssl_context(trust_env=False)
            return self._tls
