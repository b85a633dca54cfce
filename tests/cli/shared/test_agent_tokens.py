"""How `meruit agent show` prints the tokens of a run."""

import pytest

from meruit.cli.shared.agent_run import _describe_usage
from meruit.model.chat import Usage


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        (Usage(10, 5, requests=2), "10 in, 5 out"),
        (Usage(requests=2, uncounted=2), "unknown"),
        (Usage(10, 5, requests=2, uncounted=1), "at least 10 in, 5 out; 1 of 2"),
    ],
)
def test_uncounted_tokens_are_never_shown_as_zero(usage: Usage, shown: str) -> None:
    assert _describe_usage(usage).startswith(shown)
