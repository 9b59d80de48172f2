"""Install a wheel into an empty environment and run the README's Python from there: `python try_wheel.py WHEEL`."""

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def main(wheel: Path) -> None:
    rooms = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in rooms if not name.endswith(".dist-info")} == {"scoreveil"}, rooms
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        venv.create(home, with_pip=True)
        python = str(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        named = f"scoreveil[demo,fit] @ {wheel.resolve().as_uri()}"  # what the example imports
        subprocess.run([*pip, "install", "-q", named], check=True)
        subprocess.run([*pip, "check"], check=True)
        (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
        # -I: neither the clone nor PYTHONPATH is seen
        where = "import scoreveil, sys; assert scoreveil.__file__.startswith(sys.prefix), scoreveil.__file__\n"
        subprocess.run([python, "-I", "-W", "error", "-c", where + example], cwd=folder, check=True)
        print(f"{wheel.name}: installed into an empty environment, where the README's Python runs.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
