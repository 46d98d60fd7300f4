"""How a broker that drains says so: in its log, and to whoever asked for it."""

from __future__ import annotations


def draining(is_drained: bool, unanswered: int, drain_s: float) -> str:
    """What happens now, and when it is over at the latest."""
    if is_drained:
        # Jobs that are written down and that no worker has hold nobody up.
        kept = "1 job is" if unanswered == 1 else f"{unanswered} jobs are"
        return "drained: the broker stops" + (f"; {kept} kept for the next start" if unanswered else "")
    if not unanswered:
        return "draining: everything is answered; the broker stops"
    one = unanswered == 1
    what = "1 request is" if one else f"{unanswered} requests are"
    over = "it is answered or waits on disk" if one else "they are answered or wait on disk"
    return f"draining: {what} unanswered; the broker ends when {over}, in {drain_s:g} s at the latest"


def stopped(unanswered: int, kept: int) -> str:
    """The last words: plain requests without an answer, and jobs on disk that have not ended."""
    jobs = "1 guaranteed job is" if kept == 1 else f"{kept} guaranteed jobs are"
    after = f"; {jobs} kept for the next start" if kept else ""
    if not unanswered:
        return f"stopped{after or '; everything was answered'}"
    return f"stopped with {unanswered} unanswered {'request' if unanswered == 1 else 'requests'}{after}"
