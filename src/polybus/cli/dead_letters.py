"""`polybus jobs retry --from-table`: dead letters that a question to the table `dead_letters` finds.

Spark reads the question, so that it is the SQL that people use on the tables everywhere else; the broker that
kept the jobs puts them back, as it does when they are named.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import Struct

from polybus.cli.options import WrongUse
from polybus.cli.rows import NOTHING, ask

if TYPE_CHECKING:
    import pyarrow as pa

DATA_DIR: Final = Path("var")
# Bodies are large and no matter here.
UNREAD: Final = "body"
# How many the broker is asked for in one go: it has other things to do.
AT_ONCE: Final = 500
# What the broker says of a name that it does not know.
UNKNOWN: Final = "no dead letter is called so"
GONE: Final = "not kept by the broker"
SHOWN: Final = 50
# Spark's sentences begin with a code in brackets, and end with another one, the place, and the plan.
_CODE: Final = re.compile(r"^\[[A-Z_.0-9]+\]\s*")
_END: Final = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)


class BadPredicate(WrongUse):
    """Spark cannot make sense of it."""


class Letter(Struct):
    token: str
    service: str
    reason: str
    detail: str
    attempts: int
    # What became of it: `retried`, `would be retried`, or why not.
    fate: str = ""


def retry_from_table(
    predicate: str, tables: str, dry_run: bool, admin: str | None, data_dir: Path | None, json_: bool
) -> None:
    """Put back what the predicate finds; tell what became of each."""
    from polybus.cli.find import admin_endpoint
    from polybus.cli.output import say

    # Who has no broker to put them back hears of it before Spark is started.
    admin_endpoint(admin, data_dir)
    place = tables or str((data_dir or DATA_DIR) / "tables")
    letters = find_letters(place, predicate)
    decide(letters, dry_run, admin, data_dir)
    if not letters:
        say(f"no dead letter in {place} is one of these: {predicate}")
    report(letters, dry_run, json_)


def find_letters(tables: str, predicate: str) -> list[Letter]:
    """The letters of the table that the predicate is true for, by token; the newest row of each counts."""
    from polybus.cli.output import say
    from polybus.spark.session import require_spark

    require_spark()
    from polybus.spark.schema import DEAD_LETTERS
    from polybus.spark.tables import read_table

    columns = [name for name in DEAD_LETTERS.schema.names if name != UNREAD]
    rows = read_table(tables, "dead_letters", columns)
    if not rows.num_rows:
        # Nothing is to be found, so nobody waits for Spark to start.
        say(
            f"the table dead_letters in {tables} is empty: 'polybus pipeline build' fills it from the journal"
        )
        return []
    say(f"asking Spark which of {rows.num_rows:,} dead letters these are")
    found = _matching(rows, predicate)
    newest = {row["token"]: row for row in sorted(found, key=lambda row: (row["at"], row["seq"]))}
    return [
        Letter(token, row["service"] or "", row["reason"] or "", row["detail"] or "", row["attempts"] or 0)
        for token, row in newest.items()
        if token
    ]


def _matching(rows: pa.Table, predicate: str) -> list[dict[str, Any]]:
    import logging

    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from polybus.spark.session import open_session

    # It would write pages of Java about what we say in a sentence.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    is_ours = SparkSession.getActiveSession() is None
    spark = open_session("local[1]", "polybus jobs retry", {"spark.driver.memory": "1g"})
    try:
        found: list[dict[str, Any]] = spark.createDataFrame(rows).where(predicate).toArrow().to_pylist()
        return found
    except PySparkException as error:
        raise BadPredicate(
            f"Spark does not understand --from-table {predicate!r}: {sentence(str(error))} The columns are "
            f"{', '.join(rows.column_names)}"
        ) from None
    finally:
        if is_ours:
            spark.stop()


def sentence(text: str) -> str:
    """What Spark says, without its codes, the plan and where in Java it was."""
    words = " ".join(_END.sub("", _CODE.sub("", text.strip())).split())
    return words if words.endswith((".", "?", "!")) else f"{words}."


def decide(letters: list[Letter], dry_run: bool, admin: str | None, data_dir: Path | None) -> None:
    """Have the broker put them back, or find out whether it could."""
    if dry_run:
        for letter in letters:
            letter.fate = _would(letter.token, admin, data_dir)
        return
    for begin in range(0, len(letters), AT_ONCE):
        some = letters[begin : begin + AT_ONCE]
        answer = ask(admin, data_dir, "job_retry", jobs=[letter.token for letter in some])
        for letter in some:
            reason = answer["refused"].get(letter.token)
            letter.fate = "retried" if reason is None else GONE if reason == UNKNOWN else reason


def _would(token: str, admin: str | None, data_dir: Path | None) -> str:
    from polybus.client.admin import QuestionRefused

    try:
        found = ask(admin, data_dir, "job", job=token)
    except QuestionRefused as error:
        return GONE if "no job is called" in str(error) else str(error)
    return "would be retried" if found["dead"] else GONE


def report(letters: list[Letter], dry_run: bool, json_: bool) -> None:
    from polybus.cli.output import print_json, print_table, say

    done = [letter for letter in letters if letter.fate in ("retried", "would be retried")]
    gone = [letter for letter in letters if letter.fate == GONE]
    refused = [letter for letter in letters if letter not in done and letter not in gone]
    if json_:
        print_json(
            {
                "dry_run": dry_run,
                "retried": [] if dry_run else [letter.token for letter in done],
                **({"would_retry": [letter.token for letter in done]} if dry_run else {}),
                "gone": [letter.token for letter in gone],
                "refused": {letter.token: letter.fate for letter in refused},
            }
        )
    elif letters:
        shown = letters[:SHOWN]
        rows = [
            (
                one.token,
                one.service,
                one.attempts,
                one.reason or NOTHING,
                one.detail[:80] or NOTHING,
                one.fate,
            )
            for one in shown
        ]
        print_table(("job", "queue", ">attempts", "reason", "detail", "what became of it"), rows)
        if len(letters) > len(shown):
            say(f"… and {len(letters) - len(shown)} more")
        print(f"{'would be retried' if dry_run else 'retried'}: {len(done)}, {GONE}: {len(gone)}, ", end="")
        print(f"refused: {len(refused)}")
        if gone:
            say(
                "What the broker does not keep was retried or dropped before, or was a plain request, "
                "which is not kept when it expires; "
                f"'polybus journal replay --token {gone[0].token}' sends one again."
            )
    if refused:
        raise typer.Exit(1)
