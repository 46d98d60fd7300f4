"""`polybus journal replay`: requests of the past once more, and whether they are answered as they were."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from polybus.cli.journal_places import Journal, Since, Until, journal_place, read_time
from polybus.cli.options import Address, DataDir, Dialect, Json, Timeout, WrongUse, dialect_option, examples

if TYPE_CHECKING:
    from polybus.client.client import Client, Pending
    from polybus.journal.replay import Compared, Recorded

# Differences that are shown, and that are in the JSON; --out has them all.
SHOWN: Final = 10
IN_JSON: Final = 100
SERVICE: Final = "{service}"

REPLAY_EXAMPLES = examples(
    "polybus journal replay --since 1h --service price --to price.new",
    "polybus journal replay --since 08:00 --until 09:00 --service 'shop.*' --to '{service}.v2' --out diff",
    "polybus journal replay --token 5f3a9c01-17 --yes",
    "polybus journal replay --outcome failed --since 1d --dry-run",
)


class Ended(StrEnum):
    replied = "replied"
    failed = "failed"
    expired = "expired"
    cancelled = "cancelled"


def replay(
    since: Since = "",
    until: Until = "",
    service: Annotated[
        str, typer.Option("--service", help="Only requests of this service; 'shop.*' means all that fit.")
    ] = "",
    outcome: Annotated[
        Ended | None,
        typer.Option(
            "--outcome", metavar="OUTCOME", help=f"Only requests that ended so: {', '.join(Ended)}."
        ),
    ] = None,
    token: Annotated[list[str] | None, typer.Option("--token", help="Only this request; repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the oldest first.")] = 10_000,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SERVICE",
            help=f"Send them to this service instead; {SERVICE} in it stands for the one they went to.",
        ),
    ] = "",
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, help="So many a second at most; 0: no limit.")
    ] = 100.0,
    outstanding: Annotated[
        int, typer.Option("--outstanding", min=1, max=10_000, help="So many unanswered at once at most.")
    ] = 16,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="FIELD", help="A field of JSON replies that may differ; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write everything that is not the same here, a JSON object a line."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask whether to run requests again where they ran before.")
    ] = False,
    journal: Journal = None,
    dialect: Annotated[Dialect, dialect_option("to ask in")] = Dialect.mdr,
    address: Address = None,
    data_dir: DataDir = None,
    timeout: Timeout = 30.0,
    json_: Json = False,
) -> None:
    """Send requests of the past again, and compare the replies with those of then.

    With --to this is a shadow run: a new version of a worker, under another name, gets what the old one got,
    and every reply that is not the same is found. Without --to they run again where they ran before, with all
    that this does, so it asks first. They are sent in the order in which they came, as plain calls: a request
    that was a job is not guaranteed or retried now.

    Bodies are in the journal only if journal.body_bytes and journal.no_bodies let them. The exit status is 1
    if a reply is different or missing.
    """
    from polybus.cli.journal_tail import glob_matches
    from polybus.cli.output import print_json, say
    from polybus.journal.replay import Selection, choose

    place = journal_place(journal, data_dir)
    selection = Selection(
        read_time(since, "--since"),
        read_time(until, "--until"),
        glob_matches("service", service) if service else None,
        outcome.value if outcome else "",
        token or (),
        limit,
    )
    chosen = choose(place, selection, say)
    requests = chosen.requests
    if chosen.total > len(requests):
        say(f"The first {len(requests)} of {chosen.total} requests; --limit takes more.")
    if not requests:
        if json_:
            print_json(_summary(Counter(), [], 0.0))
        else:
            say("No requests that fit; 'polybus journal tail --what accepted' shows what there is.")
        return
    if dry_run:
        _show_plan(requests, to, json_)
        return
    _confirm(requests, to, yes)
    with _out(out) as file, _client(dialect, address, data_dir, timeout, outstanding) as client:
        run = Run(client, to, rate, outstanding, tuple(ignore or ()), timeout, file)
        with _progress(len(requests), not json_) as progress:
            run.all(requests, progress)
    if json_:
        print_json(_summary(run.counts, run.found, run.took_s))
    else:
        run.show()
    if run.counts["different"] or run.counts["failed"]:
        raise typer.Exit(1)


def target_of(request: Recorded, to: str) -> str:
    return to.replace(SERVICE, request.service) if to else request.service


def _confirm(requests: list[Recorded], to: str, yes: bool) -> None:
    """What runs where it ran before may be paid, printed or mailed twice."""
    again = Counter(
        each.service for each in requests if target_of(each, to) == each.service and each.can_be_sent
    )
    if yes or not again:
        return
    where = ", ".join(sorted(again)[:5]) + (" and others" if len(again) > 5 else "")
    text = f"{sum(again.values())} requests would run again where they ran before ({where})"
    if not sys.stdin.isatty():
        raise WrongUse(f"{text}; --to sends them elsewhere, --dry-run shows them, --yes does it")
    typer.confirm(f"{text}. Send them?", abort=True, err=True)


@contextmanager
def _client(
    dialect: Dialect, address: str | None, data_dir: Path | None, timeout_s: float, window: int
) -> Iterator[Client]:
    from polybus.cli.find import peer_endpoint
    from polybus.client.client import Client

    endpoint = peer_endpoint(dialect.value, "client", address, data_dir)
    with Client(endpoint, dialect.value, timeout_s=timeout_s, window=window) as client:
        yield client


def _out(path: Path | None) -> Any:
    return nullcontext(None) if path is None else path.open("w", encoding="utf-8")


@contextmanager
def _progress(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=total)
        yield lambda: bar.advance(task)


class Run:
    """Requests on their way, in order, never more at once or in a second than allowed."""

    def __init__(
        self,
        client: Client,
        to: str,
        rate: float,
        outstanding: int,
        ignore: tuple[str, ...],
        timeout_s: float,
        out: TextIO | None,
    ) -> None:
        self._client = client
        self._to = to
        self._pause_s = 1 / rate if rate else 0.0
        self._most = outstanding
        self._ignore = ignore
        self._timeout_s = timeout_s
        self._out = out
        self._ahead: deque[tuple[Recorded, Pending]] = deque()
        self.counts: Counter[str] = Counter()
        self.found: list[dict[str, Any]] = []
        self.took_s = 0.0

    def all(self, requests: list[Recorded], progress: Callable[[], None]) -> None:
        from polybus.journal.replay import INCOMPARABLE, NOT_KEPT, Compared

        began = due = time.monotonic()
        for request in requests:
            if not request.can_be_sent:
                self._note(request, Compared(INCOMPARABLE, f"not sent: {NOT_KEPT}"), None)
                progress()
                continue
            while len(self._ahead) >= self._most:
                self._take()
                progress()
            now = time.monotonic()
            if now < due:
                time.sleep(due - now)
            due = max(due, now) + self._pause_s
            pending = self._client.submit(target_of(request, self._to), request.body or [], self._timeout_s)
            self.counts["sent"] += 1
            self._ahead.append((request, pending))
        while self._ahead:
            self._take()
            progress()
        self.took_s = time.monotonic() - began

    def _take(self) -> None:
        from polybus.errors import RequestFailed, RequestTimeout
        from polybus.journal.replay import compare

        request, pending = self._ahead.popleft()
        reply: list[bytes] | None = None
        reason = detail = ""
        try:
            reply = [bytes(frame) for frame in pending.result_multipart()]
        except RequestFailed as error:
            reason, detail = error.code, error.detail
        except RequestTimeout:
            reason, detail = "timeout", f"no answer within {self._timeout_s:g} s"
        found = compare(request, reply, reason, self._ignore)
        self._note(request, found, reply, detail)

    def _note(self, request: Recorded, found: Compared, reply: list[bytes] | None, detail: str = "") -> None:
        self.counts[found.result] += 1
        if found.result == "same":
            return
        record = {
            "token": request.token,
            "service": request.service,
            "to": target_of(request, self._to),
            "at": request.at.isoformat(),
            "result": found.result,
            "why": f"{found.why} ({detail})" if detail else found.why,
            "outcome": request.outcome,
            "request": _frames(request.body),
            "recorded": _frames(request.reply),
            "reply": _frames(reply),
        }
        if len(self.found) < IN_JSON:
            self.found.append(record)
        if self._out is not None:
            self._out.write(json.dumps(record, ensure_ascii=False) + "\n")

    def show(self) -> None:
        from polybus.cli.output import printable

        for record in self.found[:SHOWN]:
            print(printable(f"{record['result']}: {record['token']} ({record['to']}): {record['why']}"))
        unequal = sum(self.counts[result] for result in ("different", "failed", "not comparable"))
        if unequal > SHOWN:
            print(f"… and {unequal - SHOWN} more; --out FILE has all of them, with the bodies")
        counts = " ".join(
            f"{name}={self.counts[key]}"
            for name, key in (
                ("sent", "sent"),
                ("same", "same"),
                ("different", "different"),
                ("failed", "failed"),
                ("not_comparable", "not comparable"),
            )
        )
        print(f"replay: {counts} in {self.took_s:.1f} s")


def _frames(frames: list[bytes] | None) -> list[dict[str, str]] | None:
    from polybus.cli.output import body_fields

    return None if frames is None else [body_fields(frame) for frame in frames]


def _summary(counts: Counter[str], found: list[dict[str, Any]], took_s: float) -> dict[str, Any]:
    names = ("sent", "same", "different", "failed", "not comparable")
    numbers = {name.replace(" ", "_"): counts[name] for name in names}
    return {**numbers, "took_s": round(took_s, 3), "differences": found}


def _show_plan(requests: list[Recorded], to: str, as_json: bool) -> None:
    from polybus.cli.output import moment, one_line, print_json, print_table

    if as_json:
        for each in requests:
            sendable = {
                "outcome": each.outcome,
                "can_be_sent": each.can_be_sent,
                "request": _frames(each.body),
            }
            named = {"token": each.token, "service": each.service, "to": target_of(each, to)}
            print_json({**named, "at": each.at.isoformat(), **sendable})
        return
    rows = [
        (
            each.token,
            moment(each.at.timestamp()),
            each.service,
            target_of(each, to),
            each.outcome or "never ended",
            " | ".join(one_line(frame, 60) for frame in each.body) if each.body is not None else "(not kept)",
        )
        for each in requests[:SHOWN]
    ]
    print_table(("token", "accepted", "service", "would go to", "ended", "body"), rows)
    if len(requests) > SHOWN:
        print(f"… and {len(requests) - SHOWN} more; --json has them all")
    kept = sum(each.can_be_sent for each in requests)
    others = "; the bodies of the others were not kept" if kept < len(requests) else ""
    print(f"replay: would send {kept} of {len(requests)} requests{others}")
