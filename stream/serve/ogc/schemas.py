"""Components of the OpenAPI document for OGC API - Features."""

from __future__ import annotations

from stream.serve.schema_parts import Schema, array, features, hexagon, members, ref

_TEXT: Schema = {"type": "string"}


def schemas_of_features() -> Schema:
    """Components for landing page, conformance, collections and features."""
    link = {"href": _TEXT, "rel": _TEXT, "type": _TEXT, "title": _TEXT}
    links = {"links": array(ref("Link"), "Where to go from here.")}
    extent = {
        "spatial": members({"bbox": array(array({"type": "number"}, "A box."), "Boxes."), "crs": _TEXT}),
        "temporal": members({"interval": array(array({"type": ["string", "null"]}, "From, to."), "Intervals.")}),
    }
    collection = {
        "id": _TEXT,
        "title": _TEXT,
        "description": _TEXT,
        "itemType": {"type": "string", "const": "feature"},
        "crs": array(_TEXT, "Reference systems of coordinates."),
        "extent": members(extent),
    }
    page, one = features(ref("Row")), hexagon(ref("Row"))
    returned = {"numberReturned": {"type": "integer", "minimum": 0}}
    return {
        "Link": members(link),
        "LandingPage": members({"title": _TEXT, "description": _TEXT} | links),
        "Conformance": members({"conformsTo": array(_TEXT, "Classes of requirements.")}),
        "Collection": members(collection | links),
        "CollectionList": members(links | {"collections": array(ref("Collection"), "By feed.")}),
        "FeaturePage": members(page["properties"] | links | returned),
        "LinkedFeature": members(one["properties"] | links),
    }
