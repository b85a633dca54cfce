"""Keys are made, shown once, listed, revoked; each admin has its own tenant's."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.api.conftest import Deployment, new_tenant

from meruit.model.access import Role


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.ADMIN, tenant)


@pytest.mark.parametrize("role", Role)
def test_a_key_of_each_role_is_made_and_shown_once(either: Deployment, tenant: str, key: str, role: Role) -> None:
    wish = {"name": "Ünder 99", "role": role, "agent_id": "robot" if role is Role.AGENT else None}
    reply = either.ask("POST", "/v1/keys", key=key, json=wish)
    assert reply.status_code == 201
    assert reply.headers["cache-control"] == "no-store"
    made, secret = reply.json()["key"], reply.json()["secret"]
    assert secret.startswith(f"{made['id']}.")
    assert (made["tenant"], made["role"], made["name"]) == (tenant, role, "Ünder 99")
    assert (made["agent_id"], made["expires_at"], made["revoked_at"]) == (wish["agent_id"], None, None)
    assert either.ask("GET", "/v1/outcomes", key=secret).status_code == 200
    listing = either.ask("GET", "/v1/keys", key=key)
    assert made in listing.json()["keys"]
    assert secret.split(".")[1] not in listing.text


@pytest.mark.parametrize(
    "wish",
    [
        {"role": "agent"},
        {"role": "admin", "agent_id": "robot"},
        {"role": "king"},
        {"role": "admin", "expires_in_days": 0},
        {"role": "admin", "expires_in_days": 3_651},
        {"role": "admin", "expires_in_days": "3"},
        {"role": "admin", "tenant": "another"},
        {"role": "admin", "name": ""},
    ],
)
def test_what_cannot_be_a_key_is_refused(either: Deployment, key: str, wish: dict[str, Any]) -> None:
    before = either.rows()
    assert either.ask("POST", "/v1/keys", key=key, json={"name": "x", **wish}).status_code == 400
    assert either.rows() == before


def test_a_key_may_end_by_itself(either: Deployment, key: str) -> None:
    wish = {"name": "short", "role": "auditor", "expires_in_days": 2}
    made = either.ask("POST", "/v1/keys", key=key, json=wish).json()["key"]
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert abs(lasts - timedelta(days=2)) < timedelta(minutes=5)


def test_keys_are_listed_in_pages(either: Deployment, tenant: str, key: str) -> None:
    made = {key, *(either.key(Role.AUDITOR, tenant) for _ in range(4))}
    found, after = list[str](), dict[str, str]()
    for _ in range(4):
        page = either.ask("GET", "/v1/keys", key=key, params={"limit": 2, **after}).json()
        found += [one["id"] for one in page["keys"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == sorted(one.split(".")[0] for one in made)


def test_a_revoked_key_stays_listed(either: Deployment, tenant: str, key: str) -> None:
    doomed = either.key(Role.AUDITOR, tenant).split(".")[0]
    first = either.ask("DELETE", f"/v1/keys/{doomed}", key=key)
    assert first.status_code == 200
    assert first.json()["revoked_at"] is not None
    again = either.ask("DELETE", f"/v1/keys/{doomed}", key=key)
    assert again.json() == first.json()
    assert first.json() in either.ask("GET", "/v1/keys", key=key).json()["keys"]


def test_an_admin_has_no_say_in_another_tenant(either: Deployment, key: str) -> None:
    theirs = either.key(Role.AUDITOR, new_tenant())
    name = theirs.split(".")[0]
    assert either.ask("DELETE", f"/v1/keys/{name}", key=key).status_code == 404
    assert either.ask("GET", "/v1/outcomes", key=theirs).status_code == 200
    assert name not in either.ask("GET", "/v1/keys", key=key).text
