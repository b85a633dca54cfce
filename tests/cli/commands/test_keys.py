"""`meruit keys`: made, listed, revoked; the secret is shown once and kept nowhere."""

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.cli.refusals import error_of

from meruit.model.access import Caller, Role
from meruit.store import tables
from meruit.store.access import keys
from meruit.store.access.key_use import AddKeyUse
from meruit.store.database import connect
from meruit.store.location import Location
from meruit.store.store import Store

Run = Callable[..., subprocess.CompletedProcess[str]]

WRITTEN = re.compile(r"mk_[0-9a-f]{12}\.[A-Za-z0-9_-]{43}\n")
USUAL = Location(Path("meruit-data"))
NOWHERE = "postgresql://user:hidden@127.0.0.1:1/name"


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def made(run: Run, *arguments: str) -> dict[str, Any]:
    """A new key, as programs see it."""
    ended = run("keys", "create", *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def listed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    ended = run("keys", "list", *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(ended.stdout)["keys"]
    return found


def let_in(secret: str, location: Location = USUAL, now: datetime | None = None) -> Caller | None:
    with closing(Store.open(location)) as store, store.database.reading() as connection:
        return keys.caller(connection, secret, now or datetime.now(UTC), store.trusted)


def events(location: Location = USUAL) -> list[str]:
    with closing(connect(location)) as database, database.reading() as connection:
        return [row.type for row in connection.execute(select(tables.events).order_by(tables.events.c.seq))]


# Making one.


def test_the_secret_is_all_of_stdout_and_opens_the_service(run: Run) -> None:
    ended = run("keys", "create", "mine", "--role", "admin")
    assert ended.returncode == 0
    assert WRITTEN.fullmatch(ended.stdout)
    assert all(part in ended.stderr for part in ("Authorization: Bearer", "admin", "default"))
    caller = let_in(ended.stdout.strip())
    assert caller == Caller("default", Role.ADMIN, ended.stdout.partition(".")[0])


def test_the_secret_is_stored_nowhere(run: Run) -> None:
    secret = made(run, "mine", "--role", "admin")["secret"]
    key_id, _, private = secret.partition(".")
    kept = b"".join(file.read_bytes() for file in sorted(Path("meruit-data").rglob("*")) if file.is_file())
    assert key_id.encode() in kept
    assert private.encode() not in kept
    shown = run("keys", "list").stdout + run("keys", "list", "--json").stdout
    assert key_id in shown
    assert private not in shown


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.AGENT])
def test_each_role_can_have_a_key(run: Run, role: Role) -> None:
    found = made(run, "somebody", "--role", role.value)
    assert found["key"]["role"] == role
    caller = let_in(found["secret"])
    assert caller is not None
    assert caller.role is role


def test_every_option_is_kept(run: Run) -> None:
    before = datetime.now(UTC)
    found = made(run, "Ann's agent", "--role", "agent", "--agent-id", "a-1", "--days", "7", "--tenant", "acme")
    key = found["key"]
    assert (key["tenant"], key["role"], key["name"], key["agent_id"]) == ("acme", "agent", "Ann's agent", "a-1")
    assert key["revoked_at"] is None
    expires = datetime.fromisoformat(key["expires_at"])
    assert before + timedelta(days=7) <= expires <= datetime.now(UTC) + timedelta(days=7)
    assert listed(run) == [key]
    assert let_in(found["secret"]) == Caller("acme", Role.AGENT, key["id"], "a-1")
    assert let_in(found["secret"], now=expires) is None


def test_a_key_lasts_for_good_unless_days_are_given(run: Run) -> None:
    assert made(run, "mine", "--role", "admin")["key"]["expires_at"] is None


def test_two_keys_differ_even_by_the_same_name(run: Run) -> None:
    first, second = (made(run, "mine", "--role", "admin") for _ in range(2))
    assert first["key"]["id"] != second["key"]["id"]
    assert first["secret"].partition(".")[2] != second["secret"].partition(".")[2]
    assert [key["id"] for key in listed(run)] == sorted([first["key"]["id"], second["key"]["id"]])
    assert events() == ["key.created"] * 2


def test_the_folder_is_the_one_that_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    key = made(run, "mine", "--role", "admin", "--data", "elsewhere")["key"]
    assert not Path("meruit-data").exists()
    assert listed(run, "--data", "elsewhere") == [key]
    monkeypatch.setenv("MERUIT_DATA", "elsewhere")
    assert listed(run) == [key]


def test_keys_can_be_in_postgres(run: Run, postgres_url: str) -> None:
    there = ("--database-url", postgres_url)
    found = made(run, "mine", "--role", "admin", *there)
    assert listed(run, *there) == [found["key"]]
    assert let_in(found["secret"], Location(Path("meruit-data"), postgres_url)) is not None
    assert run("keys", "revoke", found["key"]["id"], *there).returncode == 0
    assert let_in(found["secret"], Location(Path("meruit-data"), postgres_url)) is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "'NAME'"),
        (("mine",), "'--role'"),
        (("mine", "--role", "root"), "'root'"),
        (("mine", "--role", "agent"), "--agent-id"),
        (("mine", "--role", "admin", "--agent-id", "a"), "--agent-id"),
        (("mine", "--role", "agent", "--agent-id", ""), "200"),
        (("mine", "--role", "agent", "--agent-id", "a\tb"), "200"),
        (("", "--role", "admin"), "200"),
        (("x" * 201, "--role", "admin"), "200"),
        (("two\nlines", "--role", "admin"), "200"),
        (("bell\a", "--role", "admin"), "200"),
        (("\x1b[31mred", "--role", "admin"), "200"),
        (("mine", "--role", "admin", "--tenant", "Acme"), "'Acme'"),
        (("mine", "--role", "admin", "--tenant", ""), "''"),
        (("mine", "--role", "admin", "--tenant", "../up"), "'../up'"),
        (("mine", "--role", "admin", "--tenant", "-dash"), "'-dash'"),
        (("mine", "--role", "admin", "--tenant", "acme\n"), "acme"),
        (("mine", "--role", "admin", "--tenant", "a" * 64), "63"),
        (("mine", "--role", "admin", "--days", "0"), "1<=x<=3650"),
        (("mine", "--role", "admin", "--days", "3651"), "1<=x<=3650"),
        (("mine", "--role", "admin", "--days", "soon"), "'soon'"),
    ],
)
def test_a_bad_key_is_refused_and_nothing_is_created(run: Run, arguments: tuple[str, ...], name: str) -> None:
    ended = run("keys", "create", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert name in ended.stderr
    assert "\x1b" not in ended.stderr
    assert not Path("meruit-data").exists()


# Listing them.


def test_a_person_sees_who_may_do_what_and_until_when(run: Run) -> None:
    plain = made(run, "for good", "--role", "auditor")["key"]
    agents = made(run, "the agent's", "--role", "agent", "--agent-id", "a-1", "--days", "30", "--tenant", "acme")["key"]
    gone = made(run, "gone", "--role", "operator")["key"]
    run("keys", "revoke", gone["id"])
    ended = run("keys", "list")
    rows = {line.split()[0]: line.split() for line in ended.stdout.splitlines()}
    assert rows["key"] == ["key", "tenant", "role", "agent", "state", "expires", "name"]
    assert rows[plain["id"]][1:] == ["default", "auditor", "–", "in", "force", "–", "for", "good"]
    assert rows[agents["id"]][1:] == [
        *("acme", "agent", "a-1", "in", "force", agents["expires_at"][:10], "the", "agent's"),
    ]
    assert rows[gone["id"]][1:] == ["default", "operator", "–", "revoked", "–", "gone"]


def test_an_expired_key_is_shown_as_expired(run: Run) -> None:
    found = made(run, "short", "--role", "admin", "--days", "1")
    with closing(connect(USUAL)) as database, database.writer.begin() as connection:
        connection.execute(update(tables.keys).values(expires_at=1))
    line = run("keys", "list").stdout.splitlines()[1]
    assert line.split()[1:] == ["default", "admin", "–", "expired", "1970-01-01", "short"]
    assert let_in(found["secret"]) is None


def test_a_tenant_is_listed_alone_when_asked(run: Run) -> None:
    ours = made(run, "ours", "--role", "admin", "--tenant", "acme")["key"]
    theirs = made(run, "theirs", "--role", "admin")["key"]
    assert listed(run, "--tenant", "acme") == [ours]
    assert {key["id"] for key in listed(run)} == {ours["id"], theirs["id"]}
    assert listed(run, "--tenant", "nobody") == []


def test_more_keys_than_one_page_are_all_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_PAGE", 2)
    several = {made(run, f"key {number}", "--role", "admin")["key"]["id"] for number in range(5)}
    found = [key["id"] for key in listed(run)]
    assert set(found) == several
    assert len(found) == len(several)


def test_without_records_the_commands_that_create_them_are_named(run: Run) -> None:
    for command in (("list",), ("revoke", "mk_000000000000")):
        error = error_of(run, "keys", *command)
        assert (error["code"], " keys create`" in error["message"]) == ("store_error", True)
        assert not Path("meruit-data").exists()


def test_use_is_shown_of_every_tenant_or_of_one(run: Run) -> None:
    known = {
        tenant: made(run, "one", "--role", "admin", "--tenant", tenant)["secret"][:15] for tenant in ("acme", "other")
    }
    added = {("acme", known["acme"]): (3, 4_096), ("other", known["other"]): (1, 12)}
    with closing(Store.open(USUAL)) as store:
        store.recorder.write(AddKeyUse(added))
    every = json.loads(run("keys", "usage", "--json").stdout)["keys"]
    assert {(one["tenant"], one["key_id"]): (one["requests"], one["bytes"]) for one in every} == added
    shown = run("keys", "usage", "--tenant", "acme").stdout
    assert known["acme"] in shown
    assert "4,096" in shown
    assert known["other"] not in shown


# Revoking one.


@pytest.mark.parametrize("whole", [False, True], ids=["by its id", "by the whole key"])
def test_a_revoked_key_lets_nobody_in_and_stays_listed(run: Run, whole: bool) -> None:
    found = made(run, "mine", "--role", "admin")
    assert let_in(found["secret"]) is not None
    ended = run("keys", "revoke", found["secret"] if whole else found["key"]["id"])
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"{found['key']['id']} is revoked")
    assert found["secret"].partition(".")[2] not in ended.stdout + ended.stderr
    assert let_in(found["secret"]) is None
    (key,) = listed(run)
    assert key["revoked_at"] is not None
    assert key | {"revoked_at": None} == found["key"]
    assert events() == ["key.created", "key.revoked"]


def test_revoking_twice_changes_nothing(run: Run) -> None:
    key_id = made(run, "mine", "--role", "admin")["key"]["id"]
    first, second = (run("keys", "revoke", key_id, "--json") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert json.loads(first.stdout)["revoked_at"] is not None
    assert events() == ["key.created", "key.revoked"]


@pytest.mark.parametrize("key_id", ["mk_000000000000", "", "mine", "'; DROP TABLE keys; --", "mk_\x1b[31m", "☃" * 300])
def test_an_unknown_key_is_named_and_others_are_left_alone(run: Run, key_id: str) -> None:
    found = made(run, "mine", "--role", "admin")
    ended = run("keys", "revoke", key_id)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no key" in ended.stderr
    assert "\x1b" not in ended.stderr
    assert let_in(found["secret"]) is not None


@pytest.mark.parametrize("command", [("create", "mine", "--role", "admin"), ("list",), ("revoke", "mk_0")])
def test_a_server_that_does_not_answer_is_named_without_its_password(run: Run, command: tuple[str, ...]) -> None:
    ended = run("keys", *command, "--database-url", NOWHERE)
    assert (ended.returncode in (2, 3), ended.stdout) == (True, "")
    assert "postgresql://127.0.0.1:1/name" in ended.stderr
    assert "hidden" not in ended.stderr
