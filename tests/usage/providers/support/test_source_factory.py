"""Accounts are opened as they are configured, or refused with what to write instead."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.usage.providers.opened import Clock

from meruit.errors import InvalidAccount, MeruitError, UnknownName
from meruit.model.metering import AttributionKind, UsageAccount, UsageSource
from meruit.registry import UsageRegistry, usage_sources
from meruit.usage.providers.support.account_settings import base_url_of
from meruit.usage.providers.support.source_factory import credential_fingerprint, open_source

HTTP = ("anthropic", "anthropic_analytics", "litellm", "openai", "openrouter")
FILES = ("files", "otel")


def opened(**account: Any) -> UsageSource:
    return open_source(UsageAccount(**account), client=None, environment={}, clock=Clock())


def test_every_provider_is_one_file_with_a_sentence() -> None:
    assert usage_sources.names() == sorted([*HTTP, *FILES])
    for provider in usage_sources:
        assert provider.summary.endswith(".")
        assert all(meaning.endswith(".") for meaning in provider.options.values())
        assert bool(provider.key_variable) is not provider.is_file
        assert provider.self_reported is (provider.name == "otel")
        source = opened(
            provider=provider.name,
            base_url="https://proxy.example" if provider.name == "litellm" else None,
            file="usage.json" if provider.is_file else None,
        )
        assert source.kinds
        assert set(source.kinds) <= set(AttributionKind)
        assert source.longest.total_seconds() > 0
        assert source.bucket.total_seconds() in (0, 60)


def test_an_unknown_provider_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'opnai'.*'openai'"):
        opened(provider="opnai")
    with pytest.raises(UnknownName, match="'nobody'"):
        credential_fingerprint(UsageAccount(provider="nobody"), {})


@pytest.mark.parametrize(
    ("account", "setting", "value"),
    [
        ({"provider": "litellm"}, "base_url", "litellm"),
        ({"provider": "openai", "base_url": "ftp://host"}, "base_url", "https://"),
        ({"provider": "openai", "base_url": "https://user:secret@host"}, "base_url", "openai"),
        ({"provider": "openai", "base_url": "https://host/v1?key=1"}, "base_url", "[?] and #"),
        ({"provider": "openai", "base_url": "https://host:99999"}, "base_url", "openai"),
        ({"provider": "openai", "base_url": "nonsense"}, "base_url", "openai"),
        ({"provider": "openai", "file": "x.json"}, "file", "openai"),
        ({"provider": "files"}, "file", "file:"),
        ({"provider": "otel", "file": "x", "base_url": "https://host"}, "base_url", "otel"),
        ({"provider": "files", "file": "x", "key_variable": "K"}, "key_variable", "files"),
        ({"provider": "openai", "options": {"kind": "x"}}, "kind", "'kinds'.*api_key_ids"),
        ({"provider": "openrouter", "options": {"kinds": "x"}}, "kinds", "none"),
        ({"provider": "openai", "options": {"kinds": "completion"}}, "kinds", "'completion'.*'completions'"),
        ({"provider": "openai", "options": {"pause_s": "long"}}, "pause_s", "0 to 600.*'long'"),
        ({"provider": "openai", "options": {"pause_s": "nan"}}, "pause_s", "'nan'"),
        ({"provider": "litellm", "base_url": "http://h", "options": {"page_size": "1001"}}, "page_size", "1 to 1000"),
        ({"provider": "litellm", "base_url": "http://h", "options": {"page_size": "1.5"}}, "page_size", "1.5"),
    ],
)
def test_an_invalid_setting_is_named_when_the_account_is_opened(
    account: dict[str, Any], setting: str, value: str
) -> None:
    with pytest.raises(InvalidAccount, match=value) as refused:
        opened(**account)
    assert refused.value.setting == setting
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("provider", "given", "found"),
    [
        ("openai", None, "https://api.openai.com/v1"),
        ("openai", "http://127.0.0.1:80", "http://127.0.0.1/v1"),
        ("openai", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"),
        ("openai", "https://gateway.example/openai/v1/", "https://gateway.example/openai/v1"),
        ("openrouter", "http://host", "http://host/api/v1"),
        ("litellm", "http://host:4000", "http://host:4000"),
        ("litellm", "http://host/proxy/", "http://host/proxy"),
    ],
)
def test_an_address_of_only_a_host_takes_the_usual_path(provider: str, given: str | None, found: str) -> None:
    assert base_url_of(usage_sources.get(provider), UsageAccount(provider=provider, base_url=given)) == found


def test_a_fingerprint_identifies_a_key_without_revealing_it() -> None:
    usual = UsageAccount(provider="openai")
    named = UsageAccount(provider="openai", key_variable="MINE")
    environment = {"OPENAI_ADMIN_KEY": "sk-one\n", "MINE": "sk-two"}
    one, two = credential_fingerprint(usual, environment), credential_fingerprint(named, environment)
    assert one != two
    assert len(one) == len(two) == 16
    assert one == credential_fingerprint(named, {"MINE": "sk-one"})
    assert "sk" not in one + two
    assert credential_fingerprint(usual, {}) == credential_fingerprint(usual, {"OPENAI_ADMIN_KEY": " "}) == ""
    assert credential_fingerprint(UsageAccount(provider="files", file="x"), environment) == ""


def test_sources_of_other_packages_are_added_as_ours_are() -> None:
    registry = UsageRegistry("nowhere")

    @registry.add("mine", key_variable="MINE", options={"pace": "How fast."})
    class Mine:
        """My own counter."""

    found = registry.get("mine")
    assert (found.summary, found.key_variable, found.options) == ("My own counter.", "MINE", {"pace": "How fast."})
    assert isinstance(found.open(), Mine)
    with pytest.raises(MeruitError, match="'mine'"):
        registry.add("mine")(Mine)


def test_an_installed_package_adds_a_source(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(
        "from meruit.registry import usage_sources\n\n"
        "@usage_sources.add('counter')\n"
        "def counter(provider, account, around):\n"
        '    """Counts on its fingers."""\n'
        "    return (provider.name, account.provider, around.environment)\n"
    )
    information = tmp_path / "counter-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: counter\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[meruit.usage.providers]\ncounter = counter\n")
    code = (
        "from meruit.model.metering import UsageAccount\n"
        "from meruit.usage.providers.support.source_factory import open_source\n"
        "print(open_source(UsageAccount(provider='counter'), client=None, environment={'a': 'b'}, clock=None))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert told.stdout == "('counter', 'counter', {'a': 'b'})\n"


def test_sources_wait_by_the_event_loop_by_default() -> None:
    source = opened(provider="openai")
    client = source._client  # type: ignore[attr-defined]  # what a user would only notice after a second
    assert client._context.sleep is asyncio.sleep
