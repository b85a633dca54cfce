"""Writes what comes from the code: pages on metrics, assertions, rules, settings, commands; the layout of the tables.

`--check` only compares.
"""

import ast
import builtins
import inspect
import json
import sqlite3
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from meruit.app import build_json_schema
from meruit.benchmarks.schema import settings_schema
from meruit.checks.framework.assertion import StateAssertion
from meruit.cli import meruit
from meruit.config import DATA_VARIABLE, DATABASE_VARIABLE, DEFAULT_DATA, DEFAULT_PATH, PATH_VARIABLE, Settings
from meruit.metrics.embedding_similarity import METRIC, EmbeddingExtractor
from meruit.model.contract import USUAL_RULES
from meruit.registry import checks, exporters, flags, importers, metrics, settlement_rules, usage_sources
from meruit.store import migrate
from meruit.store.database import connect
from meruit.store.location import FILE, Location
from meruit.store.schema import metadata

DOCS = Path(__file__).parent
STORE = DOCS.parent / "src" / "meruit" / "store"
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
    yield from embedding_section()


def embedding_section() -> Iterator[str]:
    yield "## By an endpoint\n\n| metric | type | provenance | what it is |\n|---|---|---|---|"
    about = (inspect.getdoc(EmbeddingExtractor) or "").partition(": ")[2]
    yield f"| `{METRIC}` | percentage | {EmbeddingExtractor.provenance} | {about[:1].upper()}{about[1:]} |\n"
    yield "It asks any OpenAI-compatible `/embeddings` endpoint, so the [settings](settings.md) name one:\n"
    yield "```yaml\nextractors:\n  embedding:\n    class: EmbeddingExtractor\n    config:"
    yield "      base_url: https://api.openai.com/v1\n      model: text-embedding-3-small"
    yield "      key_variable: OPENAI_API_KEY  # the environment variable that holds the key\n```\n"
    yield "`dimensions`, `timeout_s` (20) and `retries` (2) may be set too. A settings file lists all extractors that"
    yield "run, so name the built-in ones that you need as well. Of several references the nearest counts; a negative"
    yield "cosine is 0."
    yield "The vectors are recorded with the result, as base64 of float32: anyone can compute the similarity again, and"
    yield "[rescoring](rescore.md) asks nothing. Whatever the endpoint does wrong makes the criterion indeterminate,"
    yield "with fault `system`; it never fails the work.\n"


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


def formats_page() -> Iterator[str]:
    yield HEAD + "# Formats\n"
    yield "What [evaluations](evaluations.md) are imported from, and written as."
    yield "[Imports](imports.md) says what is kept.\n"
    yield "## `meruit import`\n"
    yield "Recognised by content; `--format NAME` names one."
    yield "Each is one file in `src/meruit/evaluations/importers/`, or an"
    yield "entry point of the group `meruit.evaluations.importers`.\n"
    yield "| format | what is read |\n|---|---|"
    yield from (f"| `{one.name}` | {one.summary.replace('|', '/')} |" for one in importers)
    yield "\n## `meruit eval export`\n"
    yield "By `--format NAME`, or by the ending of the file where only one format has it. Each is one file in"
    yield "`src/meruit/evaluations/exporters/`, or an entry point of the group `meruit.evaluations.exporters`.\n"
    yield "| format | ending | what is written |\n|---|---|---|"
    yield from (f"| `{one.name}` | `{one.ending}` | {one.summary.replace('|', '/')} |" for one in exporters)


def settings_page() -> Iterator[str]:
    yield HEAD + "# Settings\n"
    yield f"Settings are one YAML or JSON file. `--config FILE` names it, else the variable `{PATH_VARIABLE}`; else"
    yield f"`{DEFAULT_PATH}` is read where it exists. Every section may be left out. An unknown key, a"
    yield "wrong type or a value out of range is refused, with its line. `meruit schema settings` prints the JSON"
    yield "Schema, for an editor. [Rules](rules.md) has the limits of each governance rule.\n"
    yield "| variable | meaning |\n|---|---|"
    yield f"| `{PATH_VARIABLE}` | the settings file, where `--config` is not given |"
    yield f"| `{DATA_VARIABLE}` | the folder of the records, where `--data` is not given (default: `{DEFAULT_DATA}`) |"
    yield f"| `{DATABASE_VARIABLE}` | a Postgres URL, where `--database-url` is not given (default: SQLite there) |"
    yield "\nSecrets are never in the file: `key_variable`, `token_variable` and the like name the environment variable"
    yield "that holds one."
    yield from settings_sections("", Settings)
    yield "\n## `usage.accounts.NAME.options`\n\nWhat each kind of provider takes; all of it is text.\n"
    yield "| provider | key in | option | meaning |\n|---|---|---|---|"
    for source in usage_sources:
        for name, meaning in (source.options or {"–": "takes none"}).items():
            option = f"`{name}`" if source.options else name
            yield f"| `{source.name}` | {source.key_variable or '–'} | {option} | {meaning.replace('|', '/')} |"


def settings_sections(path: str, model: type[BaseModel]) -> Iterator[str]:
    """The keys of a section, then its own sections; `NAME` stands for a key of your choice."""
    if path:
        yield f"\n## `{path}`\n\n{(inspect.getdoc(model) or '').replace('|', '/')}"
    else:
        yield "\n## Sections"
    explained = settings_meanings(model)
    yield "\n| key | type | default | meaning |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        cells = (f"`{field.alias or name}`", describe_type(field), describe_default(field), explained[name])
        yield f"| {' | '.join(one.replace('|', '/') for one in cells)} |"
    for name, field in model.model_fields.items():
        inner, is_named = model_in(field.annotation)
        if inner is not None:
            place = ".".join(filter(None, (path, field.alias or name, "NAME" if is_named else "")))
            yield from settings_sections(place, inner)


def settings_meanings(model: type[BaseModel]) -> dict[str, str]:
    """What each key means: its description, or the text below it in the code."""
    (body,) = [one for one in ast.parse(dedent(inspect.getsource(model))).body if isinstance(one, ast.ClassDef)]
    below: dict[str, str] = {}
    for one, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(following, ast.Expr):
            text = ast.literal_eval(following.value) if isinstance(following.value, ast.Constant) else ""
            below[one.target.id] = " ".join(str(text).split())
    return {name: field.description or below.get(name, "") for name, field in model.model_fields.items()}


# Any, here and below: annotations are of any type.
def model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that a key holds, and whether its own keys are names of your choice."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    found = [one for part in get_args(annotation) if (one := model_in(part)[0]) is not None]
    return (found[0], get_origin(annotation) is dict) if found else (None, False)


def describe_type(field: FieldInfo) -> str:
    limits = {
        word: getattr(limit, name)
        for limit in field.metadata
        for name, word in (("gt", "more than"), ("ge", "at least"), ("le", "at most"))
        if getattr(limit, name, None) is not None
    }
    bounds = ", ".join(
        f"{word} {value:,}" if isinstance(value, int) else f"{word} {value:g}" for word, value in limits.items()
    )
    return describe_annotation(field.annotation) + (f", {bounds}" if bounds else "")


def describe_annotation(annotation: Any) -> str:
    parts, origin = get_args(annotation), get_origin(annotation)
    typed = () if origin is Literal else parts[:1] if origin is typing.Annotated else parts
    inside = [*map(describe_annotation, typed)]
    match origin:
        case builtins.dict:
            return f"mapping of names to {inside[1]}"
        case builtins.tuple:
            return f"list of {inside[0]}"
        case typing.Annotated:
            return inside[0]
        case typing.Literal:
            return " or ".join(f"`{one}`" for one in parts)
        case typing.Union | types.UnionType:
            return " or ".join(dict.fromkeys(filter(None, inside)))
        case _:
            return describe_plain_type(annotation)


def describe_plain_type(annotation: Any) -> str:
    words = {int: "integer", float: "number", bool: "true or false", str: "text", Any: "any value", type(None): ""}
    words |= {IPv4Network: "network", IPv6Network: "network", Decimal: "number", ...: ""}
    if annotation in words:
        return words[annotation]
    return "section" if issubclass(annotation, BaseModel) else " or ".join(f"`{one}`" for one in annotation)


def describe_default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return "see below"
    if default in (None, (), {}):
        return "none"
    if isinstance(default, dict):
        return ", ".join(f"`{name}`" for name in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


FACES = {
    "meruit": "What most programs need.",
    "meruit.plugins": "What a plugin imports: the registries, and the values that plugins take and return.",
    "meruit.gate": "The gate: an agent's output is verified before the agent may stop.",
    "meruit.bridges": "The gate inside loops that other frameworks own.",
    "meruit.usage": "Token usage: meter a run, and decide what may be claimed about its tokens.",
    "meruit.contracts": "Contracts, terms, bills and settlement.",
    "meruit.outcomes": "Recorded outcomes.",
    "meruit.audit": "Check a bundle without trusting who made it.",
    "meruit.evaluations": "Evaluations: many cases judged at once, and compared.",
    "meruit.judges": "Model judges: their settings, votes and tokens.",
    "meruit.review": "People's labels: review queues, agreement, calibration of judges, corrected rates.",
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


def table_layout() -> Iterator[str]:
    """The names of every table's columns, for a process that does not load SQLAlchemy."""
    yield '"""The columns of every table in their order, its key first. Written by docs/generate.py from schema/."""\n'
    yield "# fmt: off"
    yield "COLUMNS: dict[str, tuple[str, ...]] = {"
    for name, table in sorted(metadata.tables.items()):
        names = [column.name for column in table.columns]
        if names[: len(table.primary_key)] != [column.name for column in table.primary_key]:
            raise ValueError(f"the columns of {name} do not begin with its key")
        yield f"    {json.dumps(name)}: ("
        yield from (f"        {json.dumps(column)}," for column in names)
        yield "    ),"
    yield "}"
    yield "KEY_SIZES: dict[str, int] = {"
    yield from (f'    "{name}": {len(table.primary_key)},' for name, table in sorted(metadata.tables.items()))
    yield "}"
    yield '"""How many columns the key has."""'


def sqlite_schema() -> Iterator[str]:
    """What the migrations make of an empty SQLite file, statement by statement."""
    with tempfile.TemporaryDirectory() as folder:
        location = Location(Path(folder))
        with closing(connect(location)) as migrated, migrated.writer.begin() as connection:
            migrate.run_migrations(connection)
        with closing(sqlite3.connect(location.folder / FILE)) as database:
            found = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
            made = [statement for (statement,) in found]
            if (name := migrate.name_layout(made)) != migrate.HEAD:
                raise ValueError(
                    f"the tables changed: name their revision {name} in store/migrate.py and migrations/versions, "
                    "or add a migration of that name; data folders of another revision are refused or upgraded"
                )
            yield f"-- A new SQLite file at {migrate.HEAD}. Written by docs/generate.py from the migrations.\n"
            yield from (f"{statement};" for statement in made)
            yield f"INSERT INTO alembic_version (version_num) VALUES ('{migrate.HEAD}');"  # noqa: S608 - a constant


def pages() -> dict[Path, str]:
    return {
        STORE / "layout.py": "\n".join(table_layout()) + "\n",
        migrate.script_of(migrate.HEAD): "\n".join(sqlite_schema()) + "\n",
        DOCS / "public-names.md": "\n".join(public_names_page()).rstrip() + "\n",
        DOCS / "metrics.md": "\n".join(metrics_page()).rstrip() + "\n",
        DOCS / "assertions.md": "\n".join(assertions_page()).rstrip() + "\n",
        DOCS / "rules.md": "\n".join(rules_page()).rstrip() + "\n",
        DOCS / "formats.md": "\n".join(formats_page()).rstrip() + "\n",
        DOCS / "settings.md": "\n".join(settings_page()).rstrip() + "\n",
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
