"""One criterion as an author writes it, to copy into a file."""

from collections.abc import Mapping
from typing import Any

from meruit.cli.terminal import say


def print_criterion(criterion: Mapping[str, Any]) -> None:
    """Print the criterion as an item of the list `criteria`, in YAML."""
    # Imported here so that --help is quick.
    import yaml

    text: str = yaml.safe_dump([dict(criterion)], sort_keys=False, allow_unicode=True, default_flow_style=None)
    for line in text.splitlines():
        say(f"  {line}")
