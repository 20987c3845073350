"""The OpenAPI 3.1 document, generated from the operations that are served and from the schemas of messages.

The page that shows it: the document as HTML, made once, without scripts.
"""

import base64
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, get_args
from urllib.parse import quote, urlencode

from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.messages.tables import FIRST
from stream.serve.differences import STATISTICS, Missing
from stream.serve.hexagons import Reason
from stream.serve.operations import BASE, Operation
from stream.serve.parameters import Parameter
from stream.serve.responses import PROBLEM

Schema = dict[str, Any]

PATH = f"{BASE}/openapi.json"
PAGE_PATH = f"{BASE}/openapi.html"
DESCRIBED = {"service-desc": PATH, "service-doc": PAGE_PATH}
"""Where the API is described, by the relation of a link to it."""

VERSION = "1.5.0"
"""Version of the API. The second number counts additions; a change that breaks clients gets a new path, ``v2``."""

_TEXT: Schema = {"type": "string"}
_STREAM: Schema = _TEXT | {
    "description": "Events named window: id is the place of the close marker, data is a Window as JSON. Events named "
    "alert, without id: data is an AlertNews as JSON."
}
_OBJECTS: dict[str, dict[str, Any]] = tomllib.loads(
    (resources.files("stream.serve") / "schemas.toml").read_text("utf-8")
)
_TAGS, _ERRORS = _OBJECTS.pop("tags"), _OBJECTS.pop("errors")
_TYPES = _OBJECTS.pop("types") | {
    "reason": _TEXT | {"enum": list(get_args(Reason))},
    "missing": _TEXT | {"enum": list(get_args(Missing))},
    "statistic": _TEXT | {"enum": list(STATISTICS)},
}
_MESSAGES = {"HexagonSpeed": HEXAGON_SPEED, "SpatialHistogram": SPATIAL_HISTOGRAM, "CloseMarker": WINDOW}


def document(operations: Sequence[Operation]) -> Schema:
    """The document as data that JSON can hold."""
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Hexveil",
            "version": VERSION,
            "summary": "Differentially private traffic statistics, read only.",
            "description": (
                "Everything here was released under differential privacy before it came here; no request costs "
                "anybody's privacy. Intervals hold the noise of privacy with 95 % confidence."
            ),
        },
        "servers": [{"url": "/", "description": "The service that told this document."}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {operation.path: {"get": _operation(operation)} for operation in operations},
        "components": {"schemas": schemas()},
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(operation: Operation) -> Schema:
    media = {kind: {"schema": _bytes(kind) if name is None else _ref(name)} for kind, name in operation.content.items()}
    answer: Schema = {"description": operation.summary + ".", "content": media}
    responses: Schema = {"200": answer}
    if operation.conditional:
        answer["headers"] = {
            "ETag": {"description": "Send it back as If-None-Match.", "schema": _TEXT},
            "Cache-Control": {
                "description": "no-cache: ask again with the ETag.",
                "schema": _TEXT,
            },
        }
        responses["304"] = {"description": "Nothing changed since the ETag that If-None-Match names."}
    refused = (status for parameter in operation.parameters for status in parameter.errors)
    for status in sorted({400, 503, *operation.errors, *refused}):
        responses[str(status)] = {
            "description": _ERRORS[str(status)],
            "content": {PROBLEM: {"schema": _ref("Problem")}},
        }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": responses,
    }


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": dict(parameter.schema),
        "example": parameter.example,
    }


def schemas() -> Schema:
    """Every named component: values of the topics unchanged, then the objects that the API builds from them."""
    messages = {name: _message(topic) for name, topic in _MESSAGES.items()}
    described = {name: _object(name) for name in _OBJECTS if name[0].isupper()}
    return messages | {"ReleasedNumber": _released()} | described | _derived(messages) | {"EventStream": _STREAM}


def _object(name: str) -> Schema:
    """The object of a table in ``schemas.toml``."""
    members: Schema = {}
    required: list[str] = []
    for member, said in _OBJECTS[name].items():
        if member == "in":
            for part in map(_object, said):
                members |= part["properties"]
                required += part["required"]
        else:
            kind, _, description = said.partition(" ")
            members[member.removesuffix("?")] = _type(kind) | ({"description": description} if description else {})
            required += [] if member.endswith("?") else [member]
    return {"type": "object", "properties": members, "required": required}


def _type(kind: str) -> Schema:
    """The schema of a type as ``schemas.toml`` writes it."""
    if kind.startswith("="):
        return _TEXT | {"const": kind[1:]}
    if kind.endswith("?"):
        return {"anyOf": [_type(kind[:-1]), {"type": "null"}]}
    if kind.endswith("]"):
        items, _, count = kind[:-1].rpartition("[")
        least = {"minItems": int(count.removesuffix("+"))} if count else {}
        most = {"maxItems": int(count)} if count.isdigit() else {}
        return {"type": "array", "items": _type(items)} | least | most
    if "/" in kind:
        return {"anyOf": [_type(one) for one in kind.split("/")]}
    if "|" in kind:
        return _TEXT | {"enum": kind.split("|")}
    return _TYPES[kind] if kind in _TYPES else _ref(kind)


def _derived(messages: Schema) -> Schema:
    """Components that say what is in a message, with more or less."""
    cell, histogram = messages["HexagonSpeed"], messages["SpatialHistogram"]["properties"]
    leading = (
        "By statistic the most accurate number: smoothed, else modelled within the window, else as released. Null "
        "where the cell was not published, and where nobody is estimated: the released number of users is within noise."
    )
    by_statistic = {"type": "object", "additionalProperties": _ref("Estimate")}
    estimate = {"anyOf": [by_statistic, {"type": "null"}], "description": leading}
    return {
        "Hexagon": cell
        | {"properties": cell["properties"] | {"estimate": estimate}, "required": [*cell["required"], "estimate"]},
        "HistogramSummary": {
            "type": "object",
            "description": "A spatial histogram without its structure.",
            "properties": {name: histogram[name] for name in histogram if name not in ("feed", "window", "structure")},
            "required": ["mechanism", "relation", "epsilon", "domain"],
        },
        "Row": {
            "type": "object",
            "description": "A flat row as in the CSV file; a column per number that any cell of the window has.",
            "properties": {
                name: {"type": ["number"] if name in _NUMBERS else ["string"]} for name in (*FIRST, "status")
            },
            "required": [*FIRST, "status"],
            "additionalProperties": True,
        },
    }


_NUMBERS = {"latitude", "longitude", "resolution", "epsilon", "delta"}


def _message(topic: str) -> Schema:
    """The schema of a topic's values as a component. Repeated parts get names, and additional fields are allowed.

    Rules on which fields require or exclude each other are only in the topic's own schema, because generators of
    clients do not support them.
    """
    value = schema(topic)
    named = {name: value[name] for name in ("type", "properties", "required")}
    eased: Schema = _eased(named, value["properties"].get("mean"))
    return {"description": value["title"]} | eased


def _eased(node: Any, released: Any) -> Any:
    """``node`` with references to repeated parts, and without the rule that forbids additional fields."""
    if isinstance(node, list):
        return [_eased(part, released) for part in node]
    if not isinstance(node, dict):
        return node
    properties = node.get("properties", {})
    if properties.keys() == {"start", "end"}:
        return _ref("Bounds")
    if released is not None and properties.keys() == released["properties"].keys():
        return _ref("ReleasedNumber")
    return {
        name: _eased(part, released) for name, part in node.items() if (name, part) != ("additionalProperties", False)
    }


def _released() -> Schema:
    """A number with its noise, in any unit."""
    mean = schema(HEXAGON_SPEED)["properties"]["mean"]
    properties = mean["properties"] | {
        "unit": _TEXT | {"description": "That of the value (km/h of speeds), its square, or 1 (a count)."}
    }
    return {"type": "object", "properties": properties, "required": mean["required"]}


def _bytes(kind: str) -> Schema:
    """A file. Client generators recognise binary content by a format that OpenAPI no longer defines since 3.1."""
    return _TEXT if kind.startswith("text/") else {"type": "string", "format": "binary"}


_TOP = "../.."
"""What stands before a path of the API in a link of this page, which a proxy may serve below a path."""

_STYLE = """
:root { color-scheme: light dark; background: light-dark(#fff, #111); color: light-dark(#111, #eee); }
a { color: light-dark(#0645ad, #9ab8ff); }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 0 1rem 4rem; }
h2 { border-bottom: 1px solid; margin-top: 3rem; }
h3 { margin: 2.5rem 0 0.5rem; }
h3, p, li { overflow-wrap: anywhere; }
code, h3 { font-family: ui-monospace, monospace; font-size: 1rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; }
th, td { border-bottom: 1px solid gray; padding: 0.25rem 1rem 0.25rem 0; text-align: start; vertical-align: top; }
caption { font-weight: 600; text-align: start; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of the page: nothing but its own style."""


def page(document: Mapping[str, Any]) -> bytes:
    """The document as one HTML page."""
    info, components = document["info"], document["components"]["schemas"]
    parts = [
        f"<header><h1>{escape(info['title'])}: API {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])}</p>",
        '<p><a href="openapi.json">This description as OpenAPI (JSON)</a>, <a href="../../">the map</a></p></header>',
        "<nav><ul>",
        *(
            f'<li><a href="#{tag["name"]}">{escape(tag["name"])}</a>: {escape(tag["description"])}'
            for tag in document["tags"]
        ),
        '<li><a href="#schemas">Schemas</a>: the objects in the answers.</ul></nav><main>',
    ]
    for tag in document["tags"]:
        parts.append(f'<section><h2 id="{tag["name"]}">{escape(tag["name"])}</h2>')
        for path, methods in document["paths"].items():
            if tag["name"] in methods["get"]["tags"]:
                parts += _answers_of(path, methods["get"])
        parts.append("</section>")
    parts.append('<section><h2 id="schemas">Schemas</h2>')
    for name, component in components.items():
        parts += _component(name, component)
    parts.append("</section></main>")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(info["title"])}: '
        "API</title>"
    )
    text = (
        f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>'
    )
    return text.encode()


def _answers_of(path: str, operation: Mapping[str, Any]) -> Iterable[str]:
    yield f'<h3 id="{operation["operationId"]}">GET {escape(path)}</h3><p>{escape(operation["summary"])}.</p>'
    if operation["parameters"]:
        rows = (
            (
                f"<code>{escape(parameter['name'])}</code>",
                parameter["in"] + (", required" if parameter["required"] else ""),
                _worded(parameter["schema"]),
                f"{escape(parameter['description'])} Example: <code>{escape(str(parameter['example']))}</code>",
            )
            for parameter in operation["parameters"]
        )
        yield _table(operation["operationId"], "Parameters", ("Name", "Where", "Type", "Meaning"), rows)
    answers = (
        (status, escape(answer["description"]), ", ".join(_content(answer.get("content", {}))))
        for status, answer in operation["responses"].items()
    )
    yield _table(operation["operationId"], "Answers", ("Status", "Meaning", "Content"), answers)
    example = _example(path, operation["parameters"])
    yield f'<p>Example: <a href="{escape(_TOP + example)}"><code>{escape(example)}</code></a></p>'


def _content(content: Mapping[str, Any]) -> Iterable[str]:
    for kind, media in content.items():
        yield f"<code>{escape(kind)}</code> {_worded(media['schema'])}"


def _example(path: str, parameters: Iterable[Mapping[str, Any]]) -> str:
    """A request with the examples of its required parameters."""
    required = [parameter for parameter in parameters if parameter["required"]]
    examples = {parameter["name"]: str(parameter["example"]) for parameter in required}
    query = urlencode(
        {parameter["name"]: examples[parameter["name"]] for parameter in required if parameter["in"] == "query"}
    )
    filled = re.sub(r"{(\w+)}", lambda braced: quote(examples[braced[1]], safe=":"), path)
    return filled + (f"?{query}" if query else "")


def _component(name: str, component: Mapping[str, Any]) -> Iterable[str]:
    yield f'<h3 id="schema-{name}">{escape(name)}</h3>'
    if "description" in component:
        yield f"<p>{escape(component['description'])}</p>"
    properties = component.get("properties", {})
    required = component.get("required", ())
    rows = (
        (
            f"<code>{escape(member)}</code>",
            _worded(schema),
            "" if member in required else "may be missing",
            escape(schema.get("description", "")),
        )
        for member, schema in properties.items()
    )
    if properties:
        yield _table(name, "Members", ("Name", "Type", "Presence", "Meaning"), rows)


def _worded(schema: Mapping[str, Any]) -> str:
    """What a schema allows, in a few words, with links to the components that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{escape(name)}</a>'
    for among in ("anyOf", "oneOf"):
        if among in schema:
            return " or ".join(_worded(one) for one in schema[among])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "object")
    if kind == "array":
        return f"list of {_worded(schema['items'])}"
    kinds = " or ".join(kind) if isinstance(kind, list) else kind
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    default = [f"by default <code>{escape(str(schema['default']))}</code>"] if "default" in schema else []
    return escape(" ".join([kinds, *bounds])) + "".join(f", {text}" for text in default)


def _table(of: str, caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already, about the operation or schema ``of``."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    # Wide tables scroll; for keyboards, what scrolls must be able to have the focus.
    return (
        f'<div tabindex="0" role="region" aria-label="{escape(of)}: '
        f'{caption}"><table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )
