"""An account at a provider, opened as its configuration names it."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import sha256

import httpx

from meruit.errors import AuthorError
from meruit.model.metering import UsageAccount, UsageSource
from meruit.registry import usage_sources
from meruit.sources.retry import Sleep
from meruit.usage.providers.support.http_client import UsageSourceContext, check_options, key_variable_of

FINGERPRINT_DIGITS = 16


def open_source(
    account: UsageAccount,
    *,
    client: httpx.AsyncClient | None,
    environment: Mapping[str, str],
    clock: Callable[[], datetime],
    sleep: Sleep = asyncio.sleep,
) -> UsageSource:
    """The source that counts for an account; UnknownName for no such provider, AuthorError for what cannot be meant.

    A key that is not there is found out when it is needed: it may come while the account waits for it.
    """
    provider = usage_sources.get(account.provider)
    check_options(provider, account)
    if provider.is_file and not account.file:
        raise AuthorError(f"an account at {provider.name} reads a file; name it with file: …")
    unfit = [name for name, value in (("base_url", account.base_url), ("key_variable", account.key_variable)) if value]
    if provider.is_file and unfit:
        raise AuthorError(
            f"an account at {provider.name} reads a file and asks nobody; leave out {' and '.join(unfit)}"
        )
    if account.file and not provider.is_file:
        raise AuthorError(f"an account at {provider.name} is asked over HTTP and reads no file; leave out file")
    return provider.open(provider, account, UsageSourceContext(client, environment, clock, sleep))


def credential_fingerprint(account: UsageAccount, environment: Mapping[str, str]) -> str:
    """By which another key is told from the same one, and which tells nothing of it; empty where there is none."""
    name = key_variable_of(usage_sources.get(account.provider), account)
    secret = environment.get(name, "").strip() if name else ""
    return sha256(secret.encode()).hexdigest()[:FINGERPRINT_DIGITS] if secret else ""
