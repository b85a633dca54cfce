"""Ask a governance service over HTTP."""

import asyncio
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec

from meruit.errors import OutboundFailed, OutboundRefused, Unreachable
from meruit.model.decoding import decode_json
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
        """The service's result; raises Unreachable for no answer, or one that is not valid."""
        question = {
            "contract_id": contract_id,
            "claimed_metrics": dict(claimed_metrics),
            "execution_context": dict(execution_context),
        }
        try:
            asked = msgspec.json.encode(question)
            # Loading certificates would block the event loop.
            tls = self._tls or await asyncio.to_thread(self._load_tls_context)
            # One client per request: it belongs to the event loop of the caller.
            async with Outbound(allowed_networks=self._networks, timeout_s=self._timeout_s, tls=tls) as outbound:
                reply = await outbound.post(self._url, asked, self._headers)
        except (OutboundFailed, OutboundRefused, TypeError, UnicodeEncodeError) as problem:
            raise Unreachable(f"the governance service did not answer: {problem}") from None
        if reply.status != OK:
            raise Unreachable(f"the governance service answered with status {reply.status}")
        try:
            return decode_json(reply.body, GovernanceResult).limit_flags()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise Unreachable(f"the governance service gave an answer that is not valid: {problem}") from None

    def _load_tls_context(self) -> ssl.SSLContext:
        """The trusted certificates, loaded once."""
        with self._making:
            if self._tls is None:
                self._tls = httpx.create_ssl_context(trust_env=False)
            return self._tls
