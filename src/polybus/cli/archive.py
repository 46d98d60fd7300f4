"""`polybus archive`: the archiver without a broker, for journals whose broker does not run one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polybus.cli.options import DataDir, Json, examples
from polybus.cli.start import Config

ARCHIVE_EXAMPLES = examples(
    "polybus archive --data-dir var",
    "polybus archive --data-dir var --once",
    "polybus archive --data-dir old",
)


def archive(
    data_dir: DataDir = None,
    config: Config = None,
    once: Annotated[
        bool, typer.Option("--once", help="Archive what is there, then end; else go on until Ctrl-C.")
    ] = False,
    json_: Json = False,
) -> None:
    """Make Parquet segments of the journal's logs, join small ones, and let go of what is too old.

    A broker does this itself, in a process at its side, unless journal.archive is false. Use it then, or for
    the data directory of a broker that does not run. What it does is told on standard error; with --json what
    it did is printed in the end.
    """
    import msgspec

    from polybus.cli.doctor import settings_of
    from polybus.cli.output import print_json
    from polybus.errors import ConfigError
    from polybus.journal.archive import Keep, be_modest, run
    from polybus.journal.progress import read_progress
    from polybus.server.journaling import FOLDER

    settings = settings_of(config)
    place = Path(settings.broker.data_dir) if data_dir is None else data_dir
    if not (place / FOLDER).is_dir():
        raise ConfigError(f"there is no journal in {place}; give the data directory of a broker")
    be_modest()
    keep = settings.journal
    status = run(
        place / FOLDER, Keep(keep.keep_days, keep.keep_bytes, keep.compact_after_s), alone=True, once=once
    )
    if json_:
        print_json(msgspec.structs.asdict(read_progress(place / FOLDER)))
    if status:
        raise typer.Exit(status)
