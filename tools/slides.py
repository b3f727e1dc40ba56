"""Make slides of the lessons that need no network, in build/slides."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from nbconvert import SlidesExporter
from outputs import ROOT, lesson_paths, name
from traitlets.config import Config

BUILD = ROOT / "build"
# nbconvert's template is written for reveal.js 4 and for require.js.
PACKAGES = ("reveal.js@4.6.0", "requirejs@2.3.7", "jquery@3.7.1")
WIDTH, HEIGHT = 1280, 720
# The template would load Mermaid and MathJax from the network, and asks MathJax at every slide.
TEMPLATE = """\
{% extends 'index.html.j2' %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_js_mathjax %}
<script>window.MathJax = {Hub: {getAllJax: () => null}}</script>
{% endblock %}
{% block html_head_css %}
<style>
:root { --jp-cell-prompt-width: 0; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
.jp-Cell { padding: 0 8px; }
.jp-OutputArea-output pre, .jp-CodeMirrorEditor pre { line-height: 1.25; }
.reveal { --r-heading-text-transform: none; }
.reveal .slides section img { max-height: 480px; margin: 0; }
</style>
{% endblock %}
"""


class SlidesError(Exception):
    """The slides cannot be made. The message says what to do."""


def vendored(build: Path = BUILD) -> Path:
    """Return the folder of the JavaScript packages, after npm has put them there once.

    Raises:
        SlidesError: npm is missing or could not fetch them.
    """
    modules = build / "node_modules"
    if all((modules / package.partition("@")[0]).exists() for package in PACKAGES):
        return modules
    npm = shutil.which("npm")
    if npm is None:
        raise SlidesError("npm is not on the PATH: install Node.js, which brings it.")
    build.mkdir(exist_ok=True)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--no-save", "--fetch-retries=0")
    command = [npm, "install", "--prefix", str(build), *quiet, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SlidesError(
            f"npm could not fetch {', '.join(PACKAGES)}: is there a network?\n{done.stderr}"
        )
    return modules


def exporter() -> SlidesExporter:
    """Return the exporter, which links to what `write_slides` puts beside the slides."""
    config = Config()
    config.SlidesExporter.reveal_url_prefix = "vendor/reveal"
    config.SlidesExporter.reveal_theme = "white"
    config.SlidesExporter.reveal_transition = "none"
    config.SlidesExporter.reveal_number = "c/t"
    config.SlidesExporter.reveal_width = str(WIDTH)
    config.SlidesExporter.reveal_height = str(HEIGHT)
    config.HTMLExporter.require_js_url = "vendor/require.js"
    config.HTMLExporter.jquery_url = "vendor/jquery.min.js"
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_input_tags = {"hide-input"}
    config.TagRemovePreprocessor.remove_cell_tags = {"no-slides"}
    return SlidesExporter(config=config, raw_template=TEMPLATE)  # type: ignore[no-untyped-call]


def write_slides(folder: Path, modules: Path) -> list[Path]:
    """Write the slides of all lessons and the packages they load; return the slides' files."""
    vendor = folder / "vendor"
    for part in ("dist", "plugin/notes"):
        source = modules / "reveal.js" / part
        shutil.copytree(source, vendor / "reveal" / part, dirs_exist_ok=True)
    shutil.copy(modules / "requirejs" / "require.js", vendor)
    shutil.copy(modules / "jquery" / "dist" / "jquery.min.js", vendor)
    written = []
    for lesson in lesson_paths():
        text, _ = exporter().from_filename(str(lesson))
        file = folder / f"{lesson.stem}.slides.html"
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written


def main() -> int:
    """Make the slides. Return the exit code."""
    try:
        written = write_slides(BUILD / "slides", vendored())
    except SlidesError as error:
        print(error, file=sys.stderr)
        return 1
    print(*map(name, written), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
