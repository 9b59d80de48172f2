"""schemathesis against the gateway's OpenAPI document: no 5xx, no status or answer that it does not describe.

python conformance/api_cases.py http://127.0.0.1:8080 http://127.0.0.1:9090 10000
"""

import copy
import math
import sys
from collections import Counter
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def run(gateway: str, admin: str, cases: int) -> Counter[int]:
    """How many answers of each status `cases` requests got.

    A third of them are as the document allows, a third are not, and a third are what the model declares, so that
    they get through. Operations without a body, which has to vary, are asked once.
    """
    document = requests.get(f"{admin}/openapi.json", timeout=30).json()
    seen: Counter[int] = Counter()
    bodies = sum("requestBody" in each for operations in document["paths"].values() for each in operations.values())
    each = cases // bodies // 3 + 1
    _try(document, gateway, GenerationMode.NEGATIVE, each, seen)
    _try(document, gateway, GenerationMode.POSITIVE, each, seen)
    declared: Counter[int] = Counter()
    _try(_narrowed(document, gateway), gateway, GenerationMode.POSITIVE, each, declared)
    # an Idempotency-Key that comes again with another body is refused, rightly
    assert declared[200] > 0.9 * (declared.total() - declared[409]), f"requests as declared got {dict(declared)}"
    return seen + declared


def _try(document: Any, gateway: str, mode: GenerationMode, count: int, seen: Counter[int]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=gateway)
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    session = requests.Session()

    def check(case: Any) -> None:
        answer = case.call(session=session, timeout=30)
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=checks)

    quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    for operation in [found.ok() for found in schema.get_all_operations()]:
        has_body = "requestBody" in document["paths"][operation.path][operation.method]
        if has_body or mode == GenerationMode.POSITIVE:
            strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
            settings(max_examples=count if has_body else 1, **quiet)(given(case=strategy)(check))()


def _narrowed(document: Any, gateway: str) -> Any:
    """The document, with requests of one to three rows as the first model declares its inputs and outputs."""
    path = next(path for path in document["paths"] if path.startswith("/v2/models/") and path.count("/") == 3)
    declared = requests.get(gateway + path, timeout=30).json()
    (spec,) = declared["inputs"]
    number = {"type": "number", "minimum": 0, "maximum": 16}
    forms = []
    for rows in (1, 2, 3):
        count = rows * math.prod(spec["shape"][1:])
        data = {"type": "array", "items": number, "minItems": count, "maxItems": count}
        shape = {"const": [rows, *spec["shape"][1:]]}
        forms.append(
            _object(name={"const": spec["name"]}, datatype={"const": spec["datatype"]}, shape=shape, data=data)
        )
    names = {"enum": [output["name"] for output in declared["outputs"]]}
    request = _object(inputs={"type": "array", "items": {"oneOf": forms}, "minItems": 1, "maxItems": 1})
    request["properties"]["id"] = {"type": "string", "maxLength": 256}
    request["properties"]["outputs"] = {"type": "array", "items": _object(name=names), "maxItems": 1}
    narrowed = copy.deepcopy(document)
    narrowed["components"]["schemas"]["RequestMessage"] = request
    return narrowed


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


if __name__ == "__main__":
    found = run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(f"{sum(found.values()):,} cases, by status: {dict(sorted(found.items()))}")
