"""Components of the OpenAPI document for OGC API - Features."""

from __future__ import annotations

from stream.serve import schema_parts as s


def schemas_of_features() -> s.Schema:
    """Components for landing page, conformance, collections and features."""
    link = {"href": s.TEXT, "rel": s.TEXT, "type": s.TEXT, "title": s.TEXT}
    links = {"links": s.array(s.ref("Link"), "Where to go from here.")}
    extent = {
        "spatial": s.members({"bbox": s.array(s.array(s.NUMBER, "A box."), "Boxes."), "crs": s.TEXT}),
        "temporal": s.members({"interval": s.array(s.array({"type": ["string", "null"]}, "From, to."), "Intervals.")}),
    }
    collection = {
        "id": s.TEXT,
        "title": s.TEXT,
        "description": s.TEXT,
        "itemType": s.const("feature"),
        "crs": s.array(s.TEXT, "Reference systems of coordinates."),
        "extent": s.members(extent),
    }
    page, one = s.features(s.ref("Row")), s.hexagon(s.ref("Row"))
    returned = {"numberReturned": s.COUNT}
    return {
        "Link": s.members(link),
        "LandingPage": s.members({"title": s.TEXT, "description": s.TEXT} | links),
        "Conformance": s.members({"conformsTo": s.array(s.TEXT, "Classes of requirements.")}),
        "Collection": s.members(collection | links),
        "CollectionList": s.members(links | {"collections": s.array(s.ref("Collection"), "By feed.")}),
        "FeaturePage": s.members(page["properties"] | links | returned),
        "LinkedFeature": s.members(one["properties"] | links),
    }
