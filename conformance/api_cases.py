"""schemathesis against the gateway's OpenAPI document: no 5xx, no status or answer that it does not describe.

python conformance/api_cases.py http://127.0.0.1:8080 http://127.0.0.1:9090 10000
"""

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
    """How many answers of each status `cases` requests got: those with a body, which can vary, and each other once."""
    document = requests.get(f"{admin}/openapi.json", timeout=30).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=gateway)
    operations = [found.ok() for found in schema.get_all_operations()]
    posts = sum(operation.method == "post" for operation in operations)
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    seen: Counter[int] = Counter()
    session = requests.Session()

    def try_operation(operation: Any, mode: GenerationMode, count: int) -> None:
        def check(case: Any) -> None:
            answer = case.call(session=session, timeout=30)
            seen[answer.status_code] += 1
            case.validate_response(answer, checks=checks)

        strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
        quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
        settings(max_examples=count, **quiet)(given(case=strategy)(check))()

    for operation in operations:
        if operation.method != "post":
            try_operation(operation, GenerationMode.POSITIVE, 1)
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try_operation(operation, mode, cases // posts // 2 + 1)
    return seen


if __name__ == "__main__":
    found = run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(f"{sum(found.values()):,} cases, by status: {dict(sorted(found.items()))}")
