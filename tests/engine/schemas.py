# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of growing size, each with what a grammar can bound, and broken ones.

Every value has a longest form, so that a random model cannot go on for ever. Strings are bounded by
patterns: xgrammar 0.2.8 lets control characters into those that only a length bounds.
"""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_LEAVES: tuple[Schema, ...] = (
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "two", None, True]},
    {"const": "fixed"},
    {"type": "integer", "minimum": -20, "maximum": 300},
    {"type": "string", "pattern": "^[a-zA-Z ]{0,6}$"},
    {"type": "string", "pattern": "^[a-f0-9]{4}$"},
    {"type": "string", "pattern": "^(north|south)-[1-9]$"},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"anyOf": [{"type": "boolean"}, {"enum": ["unknown"]}]},
)


def growing(number: int) -> Schema:
    """The schema of this number: 1 + number // 4 values, nested the deeper the more there are."""
    rng = random.Random(number)
    return _object(1 + number // 4, rng, shared=rng.random() < 0.3)


def _object(size: int, rng: random.Random, shared: bool = False) -> Schema:
    properties: dict[str, Schema] = {}
    while size > 0:
        name = f"{rng.choice(('name', 'kind', 'of', 'at'))}{len(properties)}"
        inner = rng.randint(2, max(2, size // 2))
        if size >= 6 and inner < size and rng.random() < 0.4:
            properties[name] = _object(inner, rng)
            size -= inner
        else:
            properties[name] = {"$ref": "#/$defs/shared"} if shared else rng.choice(_LEAVES)
            size -= 1
    made: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if rng.random() < 0.8],
        "additionalProperties": False,
    }
    if shared:
        made["$defs"] = {"shared": rng.choice(_LEAVES)}
    return made


# What no grammar can be made of: arguments of `structured_outputs`.
BROKEN: tuple[dict[str, Any], ...] = (
    {"json": "{not json"},
    {"json": {"type": "nonsense"}},
    {"json": {"type": ["string", 5]}},
    {"json": {"type": "object", "properties": 3}},
    {"json": {"type": "object", "required": 3}},
    {"json": {"type": "array", "items": 5}},
    {"json": {"type": "integer", "minimum": 9, "maximum": 1}},
    {"json": {"type": "string", "pattern": "("}},
    {"json": {"enum": []}},
    {"json": {"$ref": "#/nowhere"}},
    {"regex": "("},
    {"regex": "[z-a]"},
    {"grammar": "root ::= missing"},
    {"grammar": "nonsense"},
    {"choice": []},
    {"choice": "abc"},
    {"json": {"type": "object"}, "regex": "a"},
)
