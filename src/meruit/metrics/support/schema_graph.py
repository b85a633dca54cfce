"""A JSON Schema as a graph: each schema within it is a place, with the places it applies.

Nothing outside the schema is ever read, and what is too large or refers elsewhere is refused here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from meruit.errors import AuthorError

MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000
MAX_REFERENCES = 500

DRAFT_4 = "http://json-schema.org/draft-04/schema"
DRAFTS = frozenset(
    {
        DRAFT_4,
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)

# Keywords of all drafts at once: one that a draft does not know only makes the bound larger.
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_APPLIES = {
    **dict.fromkeys(
        ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"), "here"
    ),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), "other_names"),
    **dict.fromkeys(("items", "additionalItems", "unevaluatedItems"), "other_items"),
    "patternProperties": "any_name",
    "contains": "any_item",
}
"""The keywords that apply schemas, each with the list of `Place` that they go to."""
_HOLDS = frozenset({*_APPLIES, "properties", "prefixItems", "propertyNames", "$defs", "definitions", "contentSchema"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_MARKS = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_READ_AGAIN = _MARKS | {"contains"}
_TEXT = frozenset({"pattern", "minLength", "maxLength", "const", "enum", "contentEncoding", "contentMediaType"})
_BRANCHES = frozenset({"anyOf", "oneOf", "not", "propertyNames"})

_UNITS_PER_VALUE = 8
"""For comparing or hashing a list or an object."""
_QUOTED_CHARS = 80


@dataclass(slots=True)
class Subschema:
    """One schema within the schema, with the places it applies; those are named by the id of their dict."""

    where: str
    own: int = 1
    """Units for its own keywords, at each value it is applied to."""
    reads: int = 0
    """Units for each value inside the one it is applied to, for keywords that read all of it."""
    text: int = 0
    """Units a character, when the value is a text."""
    names: int = 0
    """Units a character of each property's name."""
    marks: bool = False
    """Whether it must find out what its neighbours have evaluated, by applying them again."""
    here: list[int] = field(default_factory=list)
    named: dict[str, int | None] = field(default_factory=dict)
    other_names: list[int] = field(default_factory=list)
    first_items: list[int | None] = field(default_factory=list)
    other_items: list[int] = field(default_factory=list)
    any_name: list[int] = field(default_factory=list)
    any_item: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    name: int | None = None

    def of_name(self, name: str) -> Iterator[int]:
        """What applies to the property of that name, whichever patterns it matches."""
        yield from self.any_name
        if name not in self.named:
            yield from self.other_names
        elif (place := self.named[name]) is not None:
            yield place

    def of_item(self, index: int) -> Iterator[int]:
        """What applies to the item at that position."""
        yield from self.any_item
        if index >= len(self.first_items):
            yield from self.other_items
        elif (place := self.first_items[index]) is not None:
            yield place

    def below(self) -> Iterator[int]:
        """All that applies to anything further down."""
        yield from (place for place in (*self.named.values(), *self.first_items, self.name) if place is not None)
        yield from (*self.other_names, *self.other_items, *self.any_name, *self.any_item)


def nodes(value: Any) -> Iterator[tuple[Any, int]]:
    """Every value inside a JSON value, with its depth; takes no recursion."""
    stack = [(value, 1)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        if isinstance(node, dict | list | tuple):
            inner = node.values() if isinstance(node, dict) else node
            stack.extend((item, depth + 1) for item in inner)


class SchemaReader:
    """Reads a schema into places, refusing what is too large and what refers elsewhere."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.places: dict[int, Subschema] = {}
        self.patterns: dict[str, str] = {}
        """Every pattern, and its first place."""
        self.branches = False
        """Whether an error can hold further errors."""
        self._draft = schema.get("$schema")
        self._anchors: dict[str, int] = {}
        self._references: list[tuple[int, str]] = []
        self._pending: list[tuple[dict[str, Any], str]] = [(schema, "")]
        _limit(schema)

    def read(self) -> None:
        """Fill `places`."""
        self._read_pending()
        # A pointer may lead to what no keyword applies, hence to further places and references.
        while self._references:
            source, reference = self._references.pop()
            target = self._target(reference, self.places[source].where)
            self._read_pending()
            self.places[source].here.append(target)

    def _read_pending(self) -> None:
        while self._pending:
            schema, where = self._pending.pop()
            if id(schema) not in self.places:
                self._read_place(schema, where)

    def _read_place(self, schema: dict[str, Any], where: str) -> None:
        self._refuse_other_documents(schema, where)
        place = self.places[id(schema)] = Subschema(where)
        for keyword, value in schema.items():
            if keyword in _HOLDS:
                self._read_schemas(place, keyword, value)
            else:
                self._read_assertion(place, keyword, value)
                if keyword in REFERENCES and isinstance(value, str):
                    self._references.append((id(schema), value))
                elif (
                    keyword in _ANCHORS
                    and isinstance(value, str)
                    and self._anchors.setdefault(value, id(schema)) != id(schema)
                ):
                    raise AuthorError(f"two places of the schema have the anchor {value!r}; rename one")
        self.branches = self.branches or not _BRANCHES.isdisjoint(schema)

    def _read_assertion(self, place: Subschema, keyword: str, value: Any) -> None:
        size = sum(1 for _ in nodes(value))
        structured = keyword in {"const", "enum"} and any(
            isinstance(node, dict | list) for node, depth in nodes(value) if depth > (keyword == "enum")
        )
        place.own += 1 + size * (_UNITS_PER_VALUE if structured else 1)
        place.reads += _UNITS_PER_VALUE * (keyword == "uniqueItems")
        place.text += keyword in _TEXT
        if keyword == "pattern" and isinstance(value, str):
            self.patterns.setdefault(value, f"{place.where}/pattern")

    def _read_schemas(self, place: Subschema, keyword: str, value: Any) -> None:
        inner = list(_schemas(keyword, value))
        place.own += 1 + len(inner) + (len(value) if isinstance(value, dict) else 0)
        place.marks = place.marks or keyword in _MARKS
        for key, schema in inner:
            if isinstance(schema, dict):
                self._pending.append((schema, f"{place.where}/{keyword}{key}"))
        ids = [id(schema) if isinstance(schema, dict) else None for _, schema in inner]
        places = [place for place in ids if place is not None]
        if keyword in _READ_AGAIN:
            place.again += places
        if keyword == "properties":
            place.named.update(zip((key[1:] for key, _ in inner), ids, strict=True))
        elif keyword == "prefixItems" or (keyword == "items" and isinstance(value, list)):
            place.first_items = ids
        elif keyword == "propertyNames":
            place.name = ids[0] if ids else None
        elif keyword in _APPLIES:
            getattr(place, _APPLIES[keyword]).extend(places)
        if keyword == "patternProperties":
            place.names += len(inner)
            for key, _ in inner:
                self.patterns.setdefault(key[1:], f"{place.where}/patternProperties")

    def _refuse_other_documents(self, schema: dict[str, Any], where: str) -> None:
        """A name of its own would make a part of the schema another document."""
        key = "id" if isinstance(self._draft, str) and self._draft.rstrip("#") == DRAFT_4 else "$id"
        if where and isinstance(schema.get(key), str):
            raise AuthorError(
                f"{where} in the schema has {key}; name it under $defs instead and refer to it as #/$defs/…"
            )
        draft = schema.get("$schema")
        if draft is None or (isinstance(draft, str) and draft.rstrip("#") in DRAFTS and draft == self._draft):
            return
        raise AuthorError(
            f"$schema at {where or 'the top'} is {_short(draft)}; "
            "write https://json-schema.org/draft/2020-12/schema once at the top, or leave it out"
        )

    def _target(self, reference: str, where: str) -> int:
        """The place that a reference leads to."""
        if not reference.startswith("#"):
            raise AuthorError(
                f"{where or 'the top'} of the schema refers to {_short(reference)}, outside the schema; "
                "nothing is fetched: copy it under $defs and refer to it as #/$defs/…"
            )
        fragment = unquote(reference[1:])
        found: Any = self.schema
        if fragment and not fragment.startswith("/"):
            if fragment in self._anchors:
                return self._anchors[fragment]
            found = None
        for token in fragment.split("/")[1:]:
            found = _step(found, token.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, dict) and found is not self.schema:
                self._refuse_other_documents(found, fragment)
        if isinstance(found, dict):
            self._pending.append((found, fragment))
            return id(found)
        if isinstance(found, bool):
            self.places.setdefault(id(found), Subschema(fragment))
            return id(found)
        raise AuthorError(f"{where or 'the top'} of the schema refers to {_short(reference)}, where no schema is")


def _limit(schema: dict[str, Any]) -> None:
    references = 0
    for count, (node, depth) in enumerate(nodes(schema), start=1):
        if isinstance(node, dict):
            references += sum(isinstance(node.get(keyword), str) for keyword in REFERENCES)
        if depth > MAX_SCHEMA_DEPTH:
            raise AuthorError(f"the schema nests more than {MAX_SCHEMA_DEPTH} deep; name its parts under $defs")
        if count > MAX_SCHEMA_NODES:
            raise AuthorError(f"the schema has more than {MAX_SCHEMA_NODES} values; shorten it")
        if references > MAX_REFERENCES:
            raise AuthorError(f"the schema has more than {MAX_REFERENCES} references; shorten it")


def _schemas(keyword: str, value: Any) -> Iterator[tuple[str, dict[str, Any] | bool]]:
    """The schemas that a keyword holds, each with its path; what is malformed is left to the validator."""
    if keyword in _MAPS:
        inner = [(f"/{name}", item) for name, item in value.items()] if isinstance(value, dict) else []
    elif isinstance(value, list):
        inner = [(f"/{index}", item) for index, item in enumerate(value)]
    else:
        inner = [("", value)]
    yield from ((path, item) for path, item in inner if isinstance(item, dict | bool))


def _step(value: Any, token: str) -> Any:
    """One step of a JSON pointer; None where it leads nowhere."""
    if isinstance(value, dict):
        return value.get(token)
    if isinstance(value, list) and token in map(str, range(len(value))):
        return value[int(token)]
    return None


def _short(value: Any) -> str:
    """A quotation of bounded length."""
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}…"
