"""Parts of which the schemas in the OpenAPI document are put together."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


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
    return {
        "type": "array",
        "items": {"type": "number"},
        "minItems": count,
        "maxItems": count,
        "description": description,
    }


def or_null(schema: Schema, description: str) -> Schema:
    """What the schema says, or null."""
    return {"anyOf": [schema, {"type": "null"}], "description": description}


def hexagon(properties: Schema) -> Schema:
    """A GeoJSON feature of one cell."""
    position = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    rings = {"type": "array", "items": {"type": "array", "items": position, "minItems": 4}}
    polygon = members({"type": {"type": "string", "const": "Polygon"}, "coordinates": rings})
    polygons = {"type": "array", "items": rings}
    apart = members({"type": {"type": "string", "const": "MultiPolygon"}, "coordinates": polygons})
    return members(
        {
            "type": {"type": "string", "const": "Feature"},
            "id": {"type": "string", "description": "H3 index."},
            "geometry": {"anyOf": [polygon, apart], "description": "What is left of a merged cell may lie apart."},
            "properties": properties,
        }
    )


def features(properties: Schema) -> Schema:
    """A GeoJSON FeatureCollection of cells."""
    cells = array(hexagon(properties), "Cells.")
    return members({"type": {"type": "string", "const": "FeatureCollection"}, "features": cells})
