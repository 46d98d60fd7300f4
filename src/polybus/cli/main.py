"""The command line: which commands there are, and how every one of them ends.

A command raises a `PolybusError` or returns; `main` turns that into one sentence and an exit status.
The modules of the commands import what they need when they run.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from polybus.cli import (
    discover,
    jobs,
    journal,
    logs,
    operate,
    pipeline,
    schedule,
    scheduler,
    start,
    talk,
    top,
    topics,
    trace,
    up,
    web,
    worker,
)
from polybus.cli.archive import ARCHIVE_EXAMPLES, archive
from polybus.cli.bridges import BRIDGES_EXAMPLES, bridges
from polybus.cli.options import ACT, FIRST, HISTORY, LOOK, TALK, WORK, WrongUse, examples
from polybus.errors import PolybusError

INTERRUPTED = 130
# The command line itself is wrong, and nothing was done; the shell's builtins use the same.
MISUSED = 2

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="[bold]New here?[/bold] Run 'polybus demo', then 'polybus serve' in one terminal and "
    "'polybus services' in another. Every command explains itself with --help.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print("polybus", version("polybus"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One ZeroMQ broker for EBUS, eMQP, the Majordomo family and DBP: any client calls any service."""


def paragraphs(text: str | None) -> str:
    """A docstring for the terminal, which breaks the lines where it needs to."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


for panel, name, command, epilog in (
    (FIRST, "demo", start.demo, start.DEMO_EXAMPLES),
    (FIRST, "up", up.up, up.UP_EXAMPLES),
    (FIRST, "serve", start.serve, start.SERVE_EXAMPLES),
    (FIRST, "doctor", start.doctor, start.DOCTOR_EXAMPLES),
    (FIRST, "settings", start.settings, start.SETTINGS_EXAMPLES),
    (TALK, "call", talk.call, talk.CALL_EXAMPLES),
    (TALK, "send", talk.send, talk.SEND_EXAMPLES),
    (TALK, "publish", talk.publish, talk.PUBLISH_EXAMPLES),
    (TALK, "subscribe", talk.subscribe, talk.SUBSCRIBE_EXAMPLES),
    (WORK, "worker", worker.worker, worker.WORKER_EXAMPLES),
    (WORK, "scheduler", scheduler.scheduler, scheduler.SCHEDULER_EXAMPLES),
    (LOOK, "discover", discover.discover, discover.DISCOVER_EXAMPLES),
    (LOOK, "status", operate.status, operate.STATUS_EXAMPLES),
    (LOOK, "services", operate.services, operate.SERVICES_EXAMPLES),
    (LOOK, "workers", operate.workers, operate.WORKERS_EXAMPLES),
    (LOOK, "queues", operate.queues, operate.QUEUES_EXAMPLES),
    (LOOK, "nodes", operate.nodes, operate.NODES_EXAMPLES),
    (LOOK, "bridges", bridges, BRIDGES_EXAMPLES),
    (LOOK, "subscribers", topics.subscribers, topics.SUBSCRIBERS_EXAMPLES),
    (LOOK, "last", topics.last, topics.LAST_EXAMPLES),
    (LOOK, "tap", operate.tap, operate.TAP_EXAMPLES),
    (LOOK, "top", top.top, top.TOP_EXAMPLES),
    (LOOK, "logs", logs.logs, logs.LOGS_EXAMPLES),
    (LOOK, "web", web.web, web.WEB_EXAMPLES),
    (HISTORY, "trace", trace.trace, trace.TRACE_EXAMPLES),
    (HISTORY, "archive", archive, ARCHIVE_EXAMPLES),
    (ACT, "cancel", operate.cancel, operate.CANCEL_EXAMPLES),
    (ACT, "drain", operate.drain, operate.DRAIN_EXAMPLES),
):
    app.command(name, help=paragraphs(command.__doc__), epilog=epilog, rich_help_panel=panel)(command)


for group_panel, title, group, text, group_epilog in (
    (
        WORK,
        "jobs",
        jobs.COMMANDS,
        "Jobs: what is queued, running or waiting, what failed for good, and what to do about it.",
        examples("polybus jobs ls", "polybus jobs dead", "polybus jobs show 5f3a9c01-17"),
    ),
    (
        WORK,
        "schedule",
        schedule.COMMANDS,
        "Schedules: jobs that the broker starts again and again, by interval or by cron.",
        examples("polybus schedule add cleanup '' --every 10m", "polybus schedule ls"),
    ),
    (
        HISTORY,
        "journal",
        journal.COMMANDS,
        "The journal: everything that flowed, written down: show it, check it, send requests again.",
        examples("polybus journal tail -f", "polybus journal verify", "polybus journal replay --help"),
    ),
    (
        HISTORY,
        "pipeline",
        pipeline.COMMANDS,
        "Tables of what happened, made of the journal by Spark: build them, keep them, look at them.",
        examples("polybus pipeline build", "polybus pipeline show service_metrics"),
    ),
):
    commands = typer.Typer(help=text, epilog=group_epilog, rich_markup_mode="rich")
    for verb, action, verb_epilog in group:
        commands.command(verb, help=paragraphs(action.__doc__), epilog=verb_epilog)(action)
    app.add_typer(commands, name=title, rich_help_panel=group_panel)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    try:
        status = app(_completed(arguments), prog_name="polybus", standalone_mode=False)
        sys.stdout.flush()
    except WrongUse as error:
        return _fail(str(error), MISUSED)
    except PolybusError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}; check the path and who may use it")
    except Exception as error:
        # typer's own errors of usage; it does not give their class a public name.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "polybus")
        # How the library that checks the choices begins all of its sentences.
        text = error.format_message().replace("Value error, ", "").rstrip(".")
        return _fail(f"{text}; '{command} --help' shows how it is used", MISUSED)
    return status if isinstance(status, int) else 0


def _completed(arguments: list[str]) -> list[str]:
    """Nothing at all, or a group of commands alone, asks what there is."""
    groups = [group.name for group in app.registered_groups]
    return (
        [*arguments, "--help"]
        if not arguments or (len(arguments) == 1 and arguments[0] in groups)
        else arguments
    )


def _fail(text: str, status: int = 1) -> int:
    text = text if text.endswith((".", "?")) else f"{text}."
    if os.environ.get("POLYBUS_LOG_FORMAT") == "json":
        from polybus.telemetry.logs import log

        log(text, "error", "polybus.cli", status=status)
    else:
        print(f"polybus: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
