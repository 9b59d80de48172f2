"""What the site shows that lies elsewhere: the changelog, with links as they are from here."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    text = (Path(config.config_file_path).parent / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from the top pages to files outside the site, which lead somewhere in the repository, as plain names."""
    if "/" in page.file.src_uri:
        return markdown
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)\s]+)\)", r"\1 (`\2`)", markdown)
