"""The package index shows the README, where the files it links to are not: there a link is its words."""

import re
from pathlib import Path

from setuptools import setup

README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"!?\[([^]]+)\]\((?!https?://)[^)]*\)", r"\1", README),
    long_description_content_type="text/markdown",
)
