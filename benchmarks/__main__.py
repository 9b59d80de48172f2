"""One entry point: `python -m benchmarks NAME [options]`; without a name it lists them."""

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {
    "speed": ["veil", "gateway", "ledger", "audit", "shapes", "first_answer", "extras", "ray_scale"],
    "soak": ["kills", "retries"],
}


def main() -> None:
    room = next((room for room, names in NAMES.items() if sys.argv[1:2] and sys.argv[1] in names), None)
    if room is not None:
        module = f"benchmarks.{room}.{sys.argv.pop(1)}"
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    for room, names in NAMES.items():
        for name in names:
            text = ast.get_docstring(ast.parse((HERE / room / f"{name}.py").read_text("utf-8"))) or ""
            print(f"{name:14}{text.splitlines()[0]}")
    sys.exit(2 if sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
