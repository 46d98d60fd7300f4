"""Safe pieces of HTML: every name in a report came over the network."""

from __future__ import annotations

from html import escape

Html = str


def text(value: object) -> Html:
    """As it is, with nothing in it that a browser would obey or that would turn the line around."""
    shown = "".join(
        c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in str(value)
    )
    return escape(shown)


def told(words: str) -> Html:
    """What is told of something that is pointed at; it may have several lines."""
    return "&#10;".join(map(text, words.split("\n")))


def short(value: object, most: int = 60) -> Html:
    """The beginning of a long name; all of it is told on hovering."""
    whole = str(value)
    if len(whole) <= most:
        return text(whole)
    return f'<span title="{text(whole[:500])}">{text(whole[: most - 1])}…</span>'


def tag(name: str, content: Html, **attributes: object) -> Html:
    """An element; `class_` and `data_t` stand for `class` and `data-t`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>"


def table(heads: list[tuple[str, str]], rows: list[list[Html]]) -> Html:
    """`heads` are (class, title); the class `n` is for numbers, `wide` for what a phone leaves out."""
    head = "".join(tag("th", text(title), class_=kind) for kind, title in heads)
    body = "".join(
        tag("tr", "".join(tag("td", cell, class_=kind) for (kind, _), cell in zip(heads, row, strict=True)))
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def nothing(sentence: str) -> Html:
    """Where there is nothing to show, it says so."""
    return tag("p", text(sentence), class_="nothing")
