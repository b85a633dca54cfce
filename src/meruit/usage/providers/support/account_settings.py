"""What an account's settings say: its address, its key and its options."""

from collections.abc import Mapping

import httpx

from meruit.errors import AuthorError, InvalidAccount
from meruit.model.metering import UsageAccount
from meruit.registry import UsageProvider
from meruit.sources.credentials import SecretToken
from meruit.sources.http import check_base_url
from meruit.suggestions import nearest


def base_url_of(provider: UsageProvider, account: UsageAccount) -> str:
    """The account's address without a slash at its end; an address of only a host gets the provider's usual path."""
    given = account.base_url or provider.base_url
    if not given:
        raise InvalidAccount("base_url", f"an account at {provider.name} needs a base_url; write https://host")
    try:
        url = httpx.URL(check_base_url(given))
    except AuthorError as problem:
        message = f"the base_url of an account at {provider.name} cannot be used: {problem}"
        raise InvalidAccount("base_url", message) from None
    if url.query or url.fragment:
        message = f"the base_url of an account at {provider.name} must not have a query or a fragment; remove ? and #"
        raise InvalidAccount("base_url", message)
    path = url.path.rstrip("/") or (httpx.URL(provider.base_url).path if provider.base_url else "")
    return str(url.copy_with(path=path or "/")).rstrip("/")


def key_variable_of(provider: UsageProvider, account: UsageAccount) -> str:
    """The environment variable that holds the account's key; empty where the account has none."""
    return account.key_variable or provider.key_variable


def token_of(provider: UsageProvider, account: UsageAccount, environment: Mapping[str, str]) -> SecretToken | None:
    """The account's key, read from the environment when a request needs it."""
    name = key_variable_of(provider, account)
    return SecretToken.from_environment(name, environment) if name else None


def check_options(provider: UsageProvider, account: UsageAccount) -> None:
    """Raise InvalidAccount for an option that accounts of this provider do not have."""
    for name in account.options:
        if name not in provider.options:
            known = ", ".join(sorted(provider.options)) or "none"
            hint = nearest(name, provider.options)
            message = f"an account at {provider.name} has no option {name!r}{hint}; valid options: {known}"
            raise InvalidAccount(name, message)


def list_option(account: UsageAccount, name: str) -> list[str]:
    """The values of an option that is a list separated by commas."""
    return [part.strip() for part in account.options.get(name, "").split(",") if part.strip()]


def number_option(account: UsageAccount, name: str, default: float, *, least: float, most: float) -> float:
    """The value of a numeric option; raises InvalidAccount for a value that is not a number in the range."""
    text = account.options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidAccount(name, f"the option {name} must be a number from {least:g} to {most:g}, not {text!r}")
    return value
