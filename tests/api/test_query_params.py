"""Query parameters that nobody reads are refused, with the nearest that somebody does."""

import pytest
from tests.api.conftest import Deployment, code_of


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/contracts?agentid=ada", "agent_id"),
        ("/v1/contracts?standing=settled", "standing"),
        ("/v1/ledger/statement?account=agent:a&currency=USD&fron=2026-01-01T00:00:00Z", "from"),
        ("/v1/outcomes?verdit=pass", "verdict"),
        ("/health?x=1", "x"),
    ],
)
def test_a_typo_is_told(deployment: Deployment, admin: str, path: str, named: str) -> None:
    reply = deployment.ask("GET", path, key=admin)
    assert reply.status_code == 400, reply.text
    assert code_of(reply).endswith("unknown_parameter")
    assert named in reply.json()["detail"]


def test_what_a_route_reads_is_let_through(deployment: Deployment, admin: str) -> None:
    for path in ("/v1/contracts?state=settled&limit=3", "/v1/outcomes?verdict=pass&before=7", "/v1/audit/checkpoint"):
        assert deployment.ask("GET", path, key=admin).status_code == 200
