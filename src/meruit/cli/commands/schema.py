"""`meruit schema`: the shape of the files, for editors and programs."""

import json
from typing import Literal

import click

from meruit.cli.terminal import ExitCode, json_option, print_json


@click.command()
@click.argument("which", type=click.Choice(["criteria", "work", "benchmark", "settings", "result"]))
@json_option
def schema(*, which: Literal["criteria", "work", "benchmark", "settings", "result"], as_json: bool) -> int:
    """Print the JSON Schema of criteria files, of work files, of benchmarks, of settings, or of results."""
    # Building a schema loads pydantic, which --help should not pay.
    from meruit.app import build_json_schema

    text = json.dumps(build_json_schema(which), indent=None if as_json else 2, ensure_ascii=False)
    print_json(text.encode())
    return ExitCode.PASSED
