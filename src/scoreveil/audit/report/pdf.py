"""A page as PDF: printed by Chromium where there is one, else by WeasyPrint.

printer = find()            # or a ValueError that says what to install, before any work is done
content = printer(html)     # the bytes of the PDF
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scoreveil.audit.report.charts.svg import LOOK

Printer = Callable[[str], bytes]  # HTML in, PDF out

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
SECONDS = 180  # that a browser may take


def find() -> Printer:
    """What can print a page here.

    Raises:
        ValueError: Nothing can; the message says what to install.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is not None:
        return partial(by_chromium, browser)
    if importlib.util.find_spec("weasyprint") is not None:
        return by_weasyprint
    raise ValueError(
        "A PDF is printed by Chromium or by WeasyPrint, and neither was found: install Chromium or Google Chrome, or "
        "pip install 'scoreveil[pdf]'."
    )


def by_chromium(browser: str, html: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="scoreveil-pdf-") as folder:
        page, printed = Path(folder, "page.html"), Path(folder, "page.pdf")
        page.write_text(html, encoding="utf-8")
        command = [browser, "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile", "--no-first-run"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium has no sandbox for root; the page asks for nothing from outside
        command += ["--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ValueError(f"Expected {browser} to print the report within {SECONDS} s, got nothing.") from None
        if not printed.is_file():
            raise ValueError(f"Expected {browser} to print the report, got exit code {done.returncode} and no file.")
        return printed.read_bytes()


def by_weasyprint(html: str) -> bytes:
    import weasyprint

    # the style of a page does not reach into its drawings there
    styled = re.sub(r'<svg [^>]*class="chart[^>]*>', lambda opening: opening[0] + LOOK, html)
    return bytes(weasyprint.HTML(string=styled).write_pdf())
