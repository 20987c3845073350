"""Parts of which the schemas in the OpenAPI document are put together."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
TIME: Schema = TEXT | {"format": "date-time"}


def said(description: str) -> Schema:
    """What is to be said of a schema: ``TEXT | said("H3 index.")``."""
    return {"description": description}


def const(value: str) -> Schema:
    """A text that is always this."""
    return TEXT | {"const": value}


def ref(name: str) -> Schema:
    """A component by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def members(properties: Schema) -> Schema:
    """An object all of whose properties are required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def with_mark(schema: Schema, description: str) -> Schema:
    """An object that may have ``at_bound``, too."""
    mark = {"type": "boolean", "description": f"{description} True, or absent."}
    return schema | {"properties": schema["properties"] | {"at_bound": mark}}


def array(items: Schema, description: str) -> Schema:
    """A list."""
    return {"type": "array", "items": items, "description": description}


def numbers(count: int, description: str) -> Schema:
    """So many numbers."""
    return array(NUMBER, description) | {"minItems": count, "maxItems": count}


def or_null(schema: Schema, description: str) -> Schema:
    """What the schema says, or null."""
    return {"anyOf": [schema, {"type": "null"}], "description": description}


def shape(kind: str, coordinates: Schema) -> Schema:
    """A GeoJSON geometry."""
    return members({"type": const(kind), "coordinates": coordinates})


def feature(geometry: Schema, properties: Schema, **more: Schema) -> Schema:
    """A GeoJSON feature."""
    return members({"type": const("Feature")} | more | {"geometry": geometry, "properties": properties})


def collection(one: Schema, description: str, **more: Schema) -> Schema:
    """A GeoJSON FeatureCollection."""
    return members({"type": const("FeatureCollection")} | more | {"features": array(one, description)})


def hexagon(properties: Schema) -> Schema:
    """A GeoJSON feature of one cell."""
    position = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
    rings = {"type": "array", "items": {"type": "array", "items": position, "minItems": 4}}
    apart = shape("MultiPolygon", {"type": "array", "items": rings})
    either = {"anyOf": [shape("Polygon", rings), apart]} | said("What is left of a merged cell may lie apart.")
    return feature(either, properties, id=TEXT | said("H3 index."))


def features(properties: Schema, **more: Schema) -> Schema:
    """A GeoJSON FeatureCollection of cells."""
    return collection(hexagon(properties), "Cells.", **more)
