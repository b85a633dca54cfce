"""Open the source of an account at a provider, as the settings describe it."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256

import httpx

from meruit.errors import InvalidAccount
from meruit.model.metering import UsageAccount, UsageSource
from meruit.registry import usage_sources
from meruit.sources.retry import Sleep
from meruit.usage.providers.support.account_settings import check_options, key_variable_of
from meruit.usage.providers.support.http_client import UsageSourceContext

FINGERPRINT_DIGITS = 16


def open_source(
    account: UsageAccount,
    *,
    client: httpx.AsyncClient | None,
    environment: Mapping[str, str],
    clock: Callable[[], datetime],
    sleep: Sleep = asyncio.sleep,
) -> UsageSource:
    """Open the source of an account; raises UnknownName for an unknown provider, InvalidAccount for an invalid setting.

    A missing key is reported when a request needs it: the operator may set it while the account waits for it.
    """
    provider = usage_sources.get(account.provider)
    check_options(provider, account)
    if provider.is_file and not account.file:
        raise InvalidAccount("file", f"an account at {provider.name} reads a file; name it with file: …")
    unfit = [name for name, value in (("base_url", account.base_url), ("key_variable", account.key_variable)) if value]
    if provider.is_file and unfit:
        message = f"an account at {provider.name} reads a file and sends no requests; remove {' and '.join(unfit)}"
        raise InvalidAccount(unfit[0], message)
    if account.file and not provider.is_file:
        message = f"an account at {provider.name} is read over HTTP, not from a file; remove file"
        raise InvalidAccount("file", message)
    return provider.open(
        provider, account, UsageSourceContext(client=client, environment=environment, clock=clock, sleep=sleep)
    )


def credential_fingerprint(account: UsageAccount, environment: Mapping[str, str]) -> str:
    """A digest that shows whether a key has changed without revealing it; empty where the account has no key."""
    name = key_variable_of(usage_sources.get(account.provider), account)
    secret = environment.get(name, "").strip() if name else ""
    return sha256(secret.encode()).hexdigest()[:FINGERPRINT_DIGITS] if secret else ""
