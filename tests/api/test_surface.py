"""Routes and their statuses in a golden file: none is renamed or lost without a diff that a person reads."""

import pytest
from tests.api.conftest import Deployment, new_tenant
from tests.golden import check_golden

from meruit.model.access import Role


@pytest.mark.golden
def test_routes_and_statuses(deployment: Deployment) -> None:
    paths = deployment.ask("GET", "/schema/openapi.json", key=deployment.key(Role.ADMIN, new_tenant())).json()["paths"]
    lines = [
        f"{method.upper()} {path}: {', '.join(sorted(operation['responses']))}"
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    check_golden("routes", "\n".join(sorted(lines)) + "\n")
