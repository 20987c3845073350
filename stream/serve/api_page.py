"""The page that shows the API: the OpenAPI document as HTML, made once, without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

Node = Mapping[str, Any]

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


def page(document: Node) -> bytes:
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
                parts += _operation(path, methods["get"])
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


def _operation(path: str, operation: Node) -> Iterable[str]:
    yield f'<h3 id="{operation["operationId"]}">GET {escape(path)}</h3><p>{escape(operation["summary"])}.</p>'
    if operation["parameters"]:
        rows = (
            (
                f"<code>{escape(parameter['name'])}</code>",
                parameter["in"] + (", required" if parameter["required"] else ""),
                _type(parameter["schema"]),
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


def _content(content: Node) -> Iterable[str]:
    for kind, media in content.items():
        yield f"<code>{escape(kind)}</code> {_type(media['schema'])}"


def _example(path: str, parameters: Iterable[Node]) -> str:
    """A request with the examples of its required parameters."""
    required = [parameter for parameter in parameters if parameter["required"]]
    examples = {parameter["name"]: str(parameter["example"]) for parameter in required}
    query = urlencode(
        {parameter["name"]: examples[parameter["name"]] for parameter in required if parameter["in"] == "query"}
    )
    filled = re.sub(r"{(\w+)}", lambda braced: quote(examples[braced[1]], safe=":"), path)
    return filled + (f"?{query}" if query else "")


def _component(name: str, component: Node) -> Iterable[str]:
    yield f'<h3 id="schema-{name}">{escape(name)}</h3>'
    if "description" in component:
        yield f"<p>{escape(component['description'])}</p>"
    properties = component.get("properties", {})
    required = component.get("required", ())
    rows = (
        (
            f"<code>{escape(member)}</code>",
            _type(schema),
            "" if member in required else "may be missing",
            escape(schema.get("description", "")),
        )
        for member, schema in properties.items()
    )
    if properties:
        yield _table(name, "Members", ("Name", "Type", "Presence", "Meaning"), rows)


def _type(schema: Node) -> str:
    """What a schema allows, in a few words, with links to the components that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{escape(name)}</a>'
    for among in ("anyOf", "oneOf"):
        if among in schema:
            return " or ".join(_type(one) for one in schema[among])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "object")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
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
