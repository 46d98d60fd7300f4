"""The report: one page of HTML, made from the tables without Spark.

numbers   units, rounding, ticks, and the columns of time
facts     what there is to tell, read and added up from the tables
marks     safe pieces of HTML
plots     inline SVG
graph     who calls whom
sections  the parts that are tables
page      the page, and its style beside it (style)
"""

from __future__ import annotations

from datetime import UTC, datetime


def make_report(tables: str, since: datetime | None = None, until: datetime | None = None) -> str:
    """A page that tells what happened in this time; everything that is in the tables without one."""
    from polybus.spark.report.facts import gather
    from polybus.spark.report.page import make_page

    return make_page(gather(tables, since, until), tables, datetime.now(UTC))
