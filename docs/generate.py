"""Writes the pages that come from the code: metrics, assertions, rules, commands, schema. `--check` only compares."""

import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from meruit.app import build_json_schema
from meruit.benchmarks.schema import settings_schema
from meruit.checks.framework.assertion import StateAssertion
from meruit.cli import meruit
from meruit.model.contract import USUAL_RULES
from meruit.registry import checks, flags, metrics, settlement_rules

DOCS = Path(__file__).parent
HEAD = "<!-- Written by docs/generate.py from the code; edit the code instead. -->\n\n"


def metrics_page() -> Iterator[str]:
    yield HEAD + "# Metrics\n"
    yield "The metrics that criteria can use. `meruit metrics` lists them, `meruit metrics NAME` explains one.\n"
    yield "Provenance says who measured: *computed* by Meruit from the work, *observed* by the system that ran it,"
    yield "*claimed* by the agent. A value that cannot be measured is never 0: the criterion is indeterminate, with the"
    yield "reason.\n"
    for family in dict.fromkeys(metric.family for metric in metrics):
        yield f"## {family}\n\n| metric | type | provenance | what it is |\n|---|---|---|---|"
        members = [metric for metric in metrics if metric.family == family]
        for metric in members:
            yield f"| `{metric.name}` | {metric.kind} | {metric.provenance} | {metric.summary.replace('|', '/')} |"
        yield ""
        for metric in members:
            if metric.params:
                yield f"`{metric.name}` takes `params`:\n"
                yield from (f"- `{name}`: {meaning}" for name, meaning in metric.params.items())
                yield ""


def assertions_page() -> Iterator[str]:
    yield HEAD + "# Assertions\n"
    yield "The settings of each check; `meruit checks NAME` shows them with an example. [Checks](checks.md) explains"
    yield "how they select, match and score. A check is one file in `src/meruit/checks/`, or an entry point of an"
    yield "installed package in the group `meruit.checks`.\n"
    shared = {field.alias or name for name, field in StateAssertion.model_fields.items()}
    everyone = settings_schema(checks.get("state-unchanged"), {})["properties"]
    yield "## Every check\n\n| setting | meaning |\n|---|---|"
    yield from (f"| `{name}` | {everyone[name].get('description', '')} |" for name in sorted(shared))
    for check in checks:
        yield f"\n## {check.name}\n\n{check.summary} Reads {', '.join(sorted(check.kinds))}; its evidence is"
        yield f"`{check.evidence}`.\n\n| setting | meaning |\n|---|---|"
        found = settings_schema(check, {})["properties"]
        for name in sorted(found.keys() - shared):
            yield f"| `{name}` | {found[name].get('description', '').replace('|', '/')} |"


def commands_page() -> Iterator[str]:
    yield HEAD + "# Commands\n"
    yield "Results go to stdout, talk to stderr. `--json` gives one JSON document. `NO_COLOR` is honoured.\n"
    yield (
        "Exit codes: 0 passed, 1 not passed, 2 bad usage or input, 3 could not verify, 4 a credential is missing or "
        "was refused, 130 interrupted.\n"
    )
    context = click.Context(meruit, info_name="meruit", terminal_width=100, max_content_width=100)
    for name in meruit.list_commands(context):
        command = meruit.get_command(context, name)
        if command is not None:
            yield from command_section(context, command, name)


def command_section(parent: click.Context, command: click.Command, name: str) -> Iterator[str]:
    inner = click.Context(command, parent=parent, info_name=name, terminal_width=100, max_content_width=100)
    yield f"## {inner.command_path}\n\n```text\n{command.get_help(inner)}\n```\n"
    if isinstance(command, click.Group):
        for part in command.list_commands(inner):
            yield from command_section(inner, command.commands[part], part)


def rules_page() -> Iterator[str]:
    yield HEAD + "# Rules\n"
    yield "## Of governance\n"
    yield "Reasons not to believe an outcome; `meruit governance rules` lists the same. Each is one file in"
    yield "`src/meruit/governance/flags/`, or an installed package's entry point of the group"
    yield "`meruit.governance.flags`. The limits are the defaults;"
    yield "`governance.limits` of the configuration changes them."
    yield "[Governance](governance.md) says how they are applied.\n"
    yield "| rule | action | limits | what it finds |\n|---|---|---|---|"
    for flag in flags:
        limits = ", ".join(f"`{name}` {value:g}" for name, value in flag.limits.items()) or "–"
        yield f"| `{flag.name}` | {flag.action} | {limits} | {flag.summary.replace('|', '/')} |"
    yield "\n## Of settlement\n"
    usual = ", ".join(f"`{name}`" for name in USUAL_RULES)
    yield "How a verdict becomes a bill; `meruit ledger rules` lists the same. Terms name the rules, which are applied"
    yield f"in that order: unless the terms say otherwise, {usual}."
    yield "Each is one file in `src/meruit/contracts/rules/`,"
    yield "or an entry point of the group `meruit.contracts.rules`.\n"
    yield "| rule | what it does |\n|---|---|"
    for rule in settlement_rules:
        yield f"| `{rule.name}` | {rule.summary.replace('|', '/')} |"


FACES = {
    "meruit": "What most programs need.",
    "meruit.plugins": "What a plugin imports: the registries, and the values that plugins take and return.",
    "meruit.gate": "The gate: an agent's output is verified before the agent may stop.",
    "meruit.bridges": "The gate inside loops that other frameworks own.",
    "meruit.usage": "Token usage: meter a run, and decide what may be claimed about its tokens.",
    "meruit.contracts": "Contracts, terms, bills and settlement.",
    "meruit.outcomes": "Recorded outcomes.",
    "meruit.audit": "Check a bundle without trusting who made it.",
    "meruit.reports": "Reports on verified runs.",
    "meruit.judge": "Judge many rows at once, or judge stored evidence again.",
    "meruit.playground": "Systems that an agent can act on, for tests and benchmarks.",
    "meruit.testing": "Tests of agents and verifiers.",
}


def public_names_page() -> Iterator[str]:
    yield HEAD + "# Public names\n"
    yield "Import from these modules. Everything else in the package may change without notice.\n"
    for face, purpose in FACES.items():
        module = import_module(face)
        yield f"## `{face}`\n\n{purpose}\n\n| name | what it is |\n|---|---|"
        for name in module.__all__:
            yield f"| `{name}` | {first_line(getattr(module, name))} |"
        yield ""


def first_line(thing: object) -> str:
    """What a name is, from its docstring; values without one are described by their type."""
    described = isinstance(thing, type) or inspect.isroutine(thing)
    text = inspect.getdoc(thing if described else type(thing)) or ""
    return text.split("\n", 1)[0].replace("|", "/")


def pages() -> dict[Path, str]:
    return {
        DOCS / "public-names.md": "\n".join(public_names_page()).rstrip() + "\n",
        DOCS / "metrics.md": "\n".join(metrics_page()).rstrip() + "\n",
        DOCS / "assertions.md": "\n".join(assertions_page()).rstrip() + "\n",
        DOCS / "rules.md": "\n".join(rules_page()).rstrip() + "\n",
        DOCS / "commands.md": "\n".join(commands_page()).rstrip() + "\n",
        DOCS / "criteria.schema.json": json.dumps(build_json_schema("criteria"), indent=2, ensure_ascii=False) + "\n",
    }


def main(*, check: bool) -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path.name} is not what the code says; run `make docs`", file=sys.stderr)
        return len(stale)
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))
