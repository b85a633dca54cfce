"""`meruit checks`: the checks that criteria can assert."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from meruit.cli.terminal import ExitCode, json_option, print_json, print_table, say
from meruit.cli.views.criterion import print_criterion

if TYPE_CHECKING:
    from meruit.registry import Check

_PLAIN = {"array": "list", "object": "mapping", "string": "text"}
MAX_TYPE = 60
"""Most characters shown of a setting's type."""


@click.command()
@click.argument("name", required=False)
@json_option
def checks(*, name: str | None, as_json: bool) -> int:
    """List the checks, or explain one with its settings."""
    # Imported here so that --help is quick.
    import msgspec

    from meruit.registry import checks as registry

    chosen = [registry.get(name)] if name is not None else list(registry)
    if as_json:
        rows = [_to_dict(check) for check in chosen]
        print_json(msgspec.json.encode(rows if name is None else rows[0]))
    elif name is not None:
        _explain(chosen[0])
    else:
        shown = [(check.name, ", ".join(sorted(check.kinds)) or "–", check.summary) for check in chosen]
        print_table(("check", "reads", "what it asserts"), shown)
    return ExitCode.PASSED


# Any: JSON Schemas and assertions as authors write them.
def _to_dict(check: "Check") -> dict[str, Any]:
    from meruit.benchmarks.schema import settings_schema

    definitions: dict[str, Any] = {}
    schema = settings_schema(check, definitions)
    return {
        "name": check.name,
        "summary": check.summary,
        "reads": sorted(check.kinds),
        "evidence": check.evidence,
        "version": check.version,
        "settings": schema | ({"$defs": definitions} if definitions else {}),
        "examples": [{"assert": check.name, **example.assertion} for example in check.examples],
    }


def _explain(check: "Check") -> None:
    from meruit.benchmarks.schema import settings_schema

    definitions: dict[str, Any] = {}
    schema = settings_schema(check, definitions)
    say(f"{check.name} (version {check.version}): {check.summary}")
    say(f"reads {', '.join(sorted(check.kinds)) or 'what it knows itself'}; its evidence is called {check.evidence}\n")
    required = {*schema.get("required", ())}
    required |= {name for group in schema.get("allOf", ()) for one in group["oneOf"] for name in one["required"]}
    # Required settings first, then the check's own, then those of every check.
    names = sorted(schema["properties"], key=lambda one: (one not in required, one in _common_settings()))
    rows = [
        (
            f"{name} *" if name in required else name,
            _type(schema["properties"][name], definitions),
            schema["properties"][name].get("description", ""),
        )
        for name in names
    ]
    print_table(("setting", "type", "what it says"), rows)
    if required:
        say("* must be given" if len(required) == 1 else "* must be given, one of them where they mean the same")
    if check.examples:
        say("\ncriteria:")
        print_criterion({"assert": check.name, **check.examples[0].assertion})


def _common_settings() -> set[str]:
    """Settings that every check has."""
    from meruit.checks.framework.assertion import StateAssertion

    return {field.alias or name for name, field in StateAssertion.model_fields.items()}


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Describe a JSON Schema in a word or two."""
    words = [word for word in dict.fromkeys(_words(schema, definitions)) if word != "null"]
    text = " | ".join(words) or "any"
    return text if len(text) <= MAX_TYPE else text[: MAX_TYPE - 1] + "…"


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield from _words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "enum" in schema:
        yield from map(str, schema["enum"])
    elif "const" in schema:
        yield str(schema["const"])
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _words(one, definitions)
    elif "type" in schema:
        several: list[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        yield from (_PLAIN.get(one, one) for one in several)
