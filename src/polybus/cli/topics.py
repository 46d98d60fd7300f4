"""The commands about topics: their last values, and their subscribers."""

from __future__ import annotations

from typing import Annotated

import typer

from polybus.cli.options import Admin, DataDir, Json, WrongUse, examples
from polybus.cli.rows import Cell, Row, ask, field, frames, moment, show, span

LAST_EXAMPLES = examples(
    "polybus last weather.rome", "polybus last --prefix weather.", "polybus last --drop weather.rome"
)
# The admin socket gives no more at once.
MOST_LISTED = 1000


def last(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; with --prefix, how topics begin.")
    ] = "",
    prefix: Annotated[
        bool, typer.Option("--prefix", help="List all topics that begin so; without TOPIC all there are.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Forget the value: new subscribers get none.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MOST_LISTED, help="List at most so many topics.")
    ] = 100,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Print the newest message of a topic, as a new subscriber would get it."""
    from polybus.cli.output import body_fields, print_json, say, write_body

    if drop and prefix:
        raise WrongUse("--drop forgets one topic, not all that begin so: leave out --prefix")
    if not topic and not prefix:
        raise WrongUse("which topic? Give its name, or --prefix to list all")
    if prefix:
        rows: list[Row] = ask(admin, data_dir, "last", topic=topic, prefix=True, limit=limit)
        columns: dict[str, Cell] = {
            "topic": field("topic"),
            ">bytes": field("bytes"),
            ">age": span("age_s"),
            "published at": moment("at"),
        }
        show(rows, json_, columns, "No topic that begins so has a last value.")
        if len(rows) == limit and not json_:
            say(f"these are the first {limit}; --limit lists more")
    elif drop:
        answer: Row = ask(admin, data_dir, "last_drop", topic=topic)
        if json_:
            print_json(answer)
        else:
            print("dropped", answer["dropped"])
    else:
        answer = ask(admin, data_dir, "last", topic=topic)
        body = b"".join(frames(answer.pop("body_base64")))
        if json_:
            print_json({**answer, **body_fields(body)})
        else:
            write_body(body, raw=False)


SUBSCRIBERS_EXAMPLES = examples("polybus subscribers", "polybus subscribers --json")


def subscribers(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the subscribers: what they want, what they got, and what they missed by reading too slowly."""
    columns: dict[str, Cell] = {
        "subscriber": field("subscriber"),
        "dialect": field("dialect"),
        "wants": wants,
        ">up": span("up_s"),
        ">delivered": field("delivered"),
        ">waiting": field("waiting"),
        ">waiting bytes": field("waiting_bytes"),
        ">dropped": field("dropped"),
    }
    show(ask(admin, data_dir, "subscribers"), json_, columns, "Nobody has subscribed over TCP.")


def wants(row: Row) -> str:
    """The first prefixes, and how many more there are."""
    named = ", ".join(prefix or "(everything)" for prefix in row["first_prefixes"])
    more = row["prefixes"] - len(row["first_prefixes"])
    return f"{named} and {more} more" if more else named
