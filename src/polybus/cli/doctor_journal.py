"""What `polybus doctor` says about the journal, from what the broker tells of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

# A log becomes a segment about a second after it is finished; after this something is wrong.
LATE_S: Final = 60.0
DISK: Final = "look at the disk of the data directory: is it full, may we write?"


def journal_findings(broker: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Check, mark, what was found, and what to do."""
    state = broker.get("journal", "off")
    if state == "off":
        yield "journal", "ok", "off (journal.enabled)", ""
        return
    lost = broker["journal_lost"]
    counts = f"{broker['journal_written']} records written, {lost} lost since the start"
    dropped = broker.get("journal_bodies_dropped", 0)
    if dropped:
        counts += f", {dropped} without their bodies"
    if state != "on":
        yield "journal", "fail", f"{state}; {counts}; the bus goes on", DISK
    elif lost:
        advice = "'polybus journal verify' shows where they are missing"
        yield "journal", "warn", counts, advice
    elif dropped:
        advice = "the disk was slower than the traffic: use a faster one, raise journal.buffer_bytes, "
        advice += "or keep fewer bodies (journal.body_bytes, journal.no_bodies)"
        yield "journal", "warn", counts, advice
    else:
        yield "journal", "ok", counts, ""
    yield from _archiver(broker)


def _archiver(broker: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    state = broker["archiver"]
    if state == "off":
        yield "archiver", "ok", "off (journal.archive): 'polybus archive' does it", ""
        return
    if not state.startswith("process "):
        advice = "pip install pyarrow" if "pyarrow" in state else DISK
        yield "archiver", "warn", state, advice
        return
    behind = broker["archiver_behind_s"]
    found = f"{state}: {broker['archiver_segments']} segments, {behind:g} s behind"
    if broker["archiver_damage"]:
        found += f"; {broker['archiver_damage']} damaged places, the last: {broker['archiver_last_damage']}"
    held = broker.get("archiver_held_back")
    if held:
        found += f"; old segments stay, because {held}"
    if behind > LATE_S:
        yield "archiver", "warn", found, "the machine may be too busy; nothing is lost by that"
    elif broker["archiver_damage"]:
        advice = "the files are in journal/open with the ending .damaged; their whole parts were read"
        yield "archiver", "warn", found, advice
    else:
        yield "archiver", "ok", found, ""
