"""The files of the pages keep their promises: no markup of data, no other host, nothing missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import polybus.web

STATIC = Path(polybus.web.__file__).with_name("static")
MODULES = sorted(STATIC.rglob("*.js"))
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
# The name of SVG is an address that nobody asks.
NAMESPACE = "http://www.w3.org/2000/svg"


def name_of(path: Path) -> str:
    return str(path.relative_to(STATIC))


def test_there_is_a_page() -> None:
    assert {"index.html", "favicon.svg", "js/main.js", "css/base.css"} <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in text


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_names_no_other_host(path: Path) -> None:
    text = path.read_text().replace(NAMESPACE, "")
    # An example in a sentence is no address that is asked.
    assert not re.findall(r"https?://(?!…)|(?:src|href)=\"//", text)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_short_and_imports_what_is_there(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 400
    for found in re.findall(r'from "(\.[^"]+)"', text):
        assert (path.parent / found).is_file(), found


def test_the_page_names_files_that_are_there() -> None:
    page = (STATIC / "index.html").read_text()
    for found in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        assert (STATIC / found.lstrip("/")).is_file(), found
    # What the policy of the server forbids does not stand in it either.
    assert not re.findall(r"<style|<script(?! type=\"module\" src=)|\son\w+=|\sstyle=", page)


def test_every_view_has_a_module_and_every_module_a_view() -> None:
    main = (STATIC / "js" / "main.js").read_text()
    listed = re.search(r"const VIEWS = \[(.*?)\n\];", main, re.DOTALL)
    details = re.search(r"const DETAILS = \{(.*?)\}", main)
    assert listed
    assert details
    views = set(re.findall(r'\["(\w+)", "', listed[1])) | set(re.findall(r"(\w+):", details[1]))
    assert views == {path.stem for path in (STATIC / "js" / "views").glob("*.js")}
