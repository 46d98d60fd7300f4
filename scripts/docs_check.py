"""Checks that what the documents point to exists (files, headings, make targets), and that the glossary
explains each word once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
# `make x` in backticks, or at the beginning of a line of a code block.
COMMAND = re.compile(r"(?:`|^\$?\s*)make ([a-z][a-z-]*)", re.MULTILINE)
# The words that a row of the glossary explains are bold, in its first cell.
GLOSSARY = "docs/glossary.md"
ROW = re.compile(r"^\| (\*\*.*?) \|", re.MULTILINE)
BOLD = re.compile(r"\*\*(.+?)\*\*")


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def anchors(text: str) -> set[str]:
    """The names that a heading gets: lower case, spaces to dashes, punctuation gone."""
    headings = (heading.replace("`", "").lower() for heading in HEADING.findall(FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def check(path: Path, targets: set[str]) -> list[str]:
    text = path.read_text(encoding="utf-8")
    problems = [f"no make target {name}" for name in COMMAND.findall(text) if name not in targets]
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        goal = (path.parent / file) if file else path
        if not goal.exists():
            problems.append(f"no file {file}")
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
            problems.append(f"no heading #{anchor} in {goal.relative_to(ROOT)}")
    return [f"{path.relative_to(ROOT)}: {problem}" for problem in problems]


def repeated_words(text: str) -> list[str]:
    """Words that the glossary explains more than once."""
    words = Counter(word for row in ROW.findall(text) for word in BOLD.findall(row))
    return [f"{GLOSSARY}: {word!r} is explained {count} times" for word, count in words.items() if count > 1]


def main() -> int:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    checked = documents()
    problems = [problem for path in checked for problem in check(path, targets)]
    problems += repeated_words((ROOT / GLOSSARY).read_text(encoding="utf-8"))
    for problem in problems:
        print(problem)
    print(f"documents: {len(checked)} checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
