"""The AsyncAPI 3.1 document of the output topics, generated from the service's schemas and topic settings."""

from __future__ import annotations

from typing import Any

from stream.messages.chain import SIGNATURE
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW, schema
from stream.messages.topics import OUTPUT_PLANS, TopicPlan

Schema = dict[str, Any]

VERSION = "1.3.0"
"""Version of the messages. The second number counts additions; a change that breaks readers gets a topic ``.v2``."""

_KEYS = {
    HEXAGON_SPEED: "H3 index of the cell.",
    SPATIAL_HISTOGRAM: "Name of the feed.",
    WINDOW: "Name of the feed.",
    REJECTED: "The reason.",
}
_MEANING = {
    HEXAGON_SPEED: "One message per released cell and window.",
    SPATIAL_HISTOGRAM: "One message per mechanism and window, from which any range query can be answered.",
    WINDOW: "The close marker: one message per window, sent after all others of it, with their number and digest, and "
    "with the digest of the marker before it.",
    REJECTED: "Which input was refused and why. Inside the trust boundary only; empty under relation participation.",
}
_WINDOW = {"start": "2017-03-21T13:00:00Z", "end": "2017-03-21T14:00:00Z"}
_MEAN = {
    "value": 14.046,
    "raw": 14.046,
    "clamped": False,
    "scale": 4.5538,
    "interval": [0.404, 27.688],
    "unit": "km/h",
}
EXAMPLES: dict[str, Schema] = {
    HEXAGON_SPEED: {
        "feed": "bus",
        "window": _WINDOW,
        "cell": "87489e342ffffff",
        "resolution": 7,
        "relation": "values",
        "epsilon": 2.0,
        "status": "published",
        "events": 1328,
        "users": 158,
        "mean": _MEAN,
    },
    SPATIAL_HISTOGRAM: {
        "feed": "bus",
        "window": _WINDOW,
        "relation": "participation",
        "epsilon": 1.0,
        "mechanism": "ug",
        "fixes_per_user": 1,
        "domain": {"south": 30.0, "west": -98.0, "north": 30.6, "east": -97.4, "rows": 2, "columns": 2},
        "structure": {
            "kind": "grid",
            "x_edges": [0, 1, 2],
            "y_edges": [0, 1, 2],
            "counts": [[310, 57], [12, -1]],
            "variances": 1.92,
        },
    },
    WINDOW: {
        "feed": "bus",
        "window": _WINDOW,
        "relation": "values",
        "epsilon": 2.0,
        "budget": 48.0,
        "period": {"start": "2017-03-21T05:00:00Z", "end": "2017-03-22T05:00:00Z", "timezone": "America/Chicago"},
        "clipping": {"lower": 0.0, "upper": 65.0, "unit": "km/h"},
        "resolution": 7,
        "statistics": ["mean"],
        "messages": 115,
        "digest": "sha256:" + "5f" * 32,
        "generation": "00000000-0000-4000-8000-000000000000",
        "sequence": 9,
        "previous": "sha256:" + "a3" * 32,
        "signer": "ed25519:" + "A" * 43 + "=",
    },
    REJECTED: {
        "feed": "bus",
        "reason": "outside-domain",
        "topic": "bus.positions",
        "partition": 0,
        "first_offset": 41,
        "last_offset": 57,
        "count": 3,
    },
}
"""For each topic, one value that its schema accepts."""


def document() -> Schema:
    """The document as data that JSON can hold; it does not depend on the deployment."""
    channels = {_name(plan.name): _channel(plan) for plan in OUTPUT_PLANS}
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Hexveil releases",
            "version": VERSION,
            "description": (
                "Differentially private traffic statistics. A message may be sent more than once, with the same ce_id "
                "and the same bytes. Later versions may add fields; ignore those that you do not know."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {
            "plain": {
                "host": "127.0.0.1:9092",
                "protocol": "kafka",
                "description": "A broker on this machine, without encryption.",
            },
            "secured": {
                "host": "kafka.example:9093",
                "protocol": "kafka-secure",
                "description": "A broker over TLS, with a user who may read these topics.",
                "security": [{"$ref": "#/components/securitySchemes/scram"}],
            },
        },
        "channels": channels,
        "operations": {
            f"publish{name[0].upper()}{name[1:]}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": channels[name]["description"],
            }
            for name in channels
        },
        "components": {
            "securitySchemes": {"scram": {"type": "scramSha512", "description": "SASL_SSL with SCRAM-SHA-512."}}
        },
    }


def _channel(plan: TopicPlan) -> Schema:
    name = _name(plan.name)
    settings = {"cleanup.policy": ["delete"], "retention.ms": plan.retention_ms}
    return {
        "address": plan.name,
        "description": _MEANING[plan.name],
        "messages": {name: _message(plan.name)},
        "bindings": {
            "kafka": {
                "topic": plan.name,
                "partitions": plan.partitions,
                "topicConfiguration": settings,
                "bindingVersion": "0.5.0",
            }
        },
    }


def _message(topic: str) -> Schema:
    whole = schema(topic)
    payload = {name: value for name, value in whole.items() if name not in ("$id", "$schema")}
    return {
        "name": topic,
        "title": whole["title"],
        "summary": _MEANING[topic],
        "contentType": "application/json",
        "headers": _headers(topic),
        "payload": _as_draft_07(payload),
        "examples": [{"payload": EXAMPLES[topic]}],
        "bindings": {"kafka": {"key": {"type": "string", "description": _KEYS[topic]}, "bindingVersion": "0.5.0"}},
    }


def _headers(topic: str) -> Schema:
    """CloudEvents 1.0 in binary mode."""
    text = {"type": "string"}
    properties = {
        "ce_specversion": text | {"const": "1.0"},
        "ce_id": text | {"description": "Deterministic; drop duplicates by it."},
        "ce_source": text | {"description": "/hexveil/ followed by the name of the feed."},
        "ce_type": text | {"const": topic},
        "ce_subject": text | {"description": "Subject of the message: a cell, a mechanism, close, or a reason."},
        "ce_time": text | {"format": "date-time", "description": "End of the window."},
        "content-type": text | {"const": "application/json"},
    }
    required = [name for name in properties if name != "ce_time" or topic != REJECTED]
    if topic == WINDOW:
        properties[SIGNATURE] = text | {
            "description": "Ed25519 signature in base64, by the key that the value names as its signer, of the value "
            "byte for byte. Absent: the marker is not signed."
        }
    return {"type": "object", "properties": properties, "required": required}


def _as_draft_07(node: Any) -> Any:
    """The schema in AsyncAPI's dialect. Of our keywords only ``dependentRequired`` has another name there."""
    if isinstance(node, list):
        return [_as_draft_07(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {"dependencies" if name == "dependentRequired" else name: _as_draft_07(part) for name, part in node.items()}


def _name(topic: str) -> str:
    """The name of a topic in the document: ``hexagonSpeed`` for ``hexveil.hexagon-speed.v1``."""
    first, *others = topic.split(".")[1].split("-")
    return first + "".join(part.capitalize() for part in others)
