"""What became of the jobs of a run, from the notes of the producers and the marks of the workers.

lost           the broker said that it has the job (a receipt, or its result), and no execution ever came to
               its end
double finals  more answers on a connection than submissions, an answer that belongs to another job, or two
               answers for one job that differ: an execution's number is in its result, so they differ if two
               executions became the outcome
unsettled      the job has not ended well by the broker's own account, although everything had time to
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notes import read_marks, read_notes


@dataclass
class Verdict:
    acked: set[str] = field(default_factory=set)
    submitted: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    unsettled: dict[str, str] = field(default_factory=dict)
    # What was wrong with the answers, by job.
    doubles: list[tuple[str, str]] = field(default_factory=list)
    executions: int = 0
    runs: int = 0
    results: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def per_job(self) -> float:
        return self.executions / len(self.acked) if self.acked else 0.0

    @property
    def is_good(self) -> bool:
        return bool(self.acked) and not (self.lost or self.doubles or self.unsettled or self.problems)


def judge(folder: Path) -> Verdict:
    verdict = Verdict()
    submits: Counter[tuple[str, int, str]] = Counter()
    finals: Counter[tuple[str, int, str]] = Counter()
    outcomes: defaultdict[str, set[str]] = defaultdict(set)
    for producer, note in read_notes(folder / "notes"):
        job = note["job"]
        place = (producer, note.get("connection", 0), note.get("request", ""))
        match note["what"]:
            case "submit":
                verdict.repeated += job in verdict.submitted
                verdict.submitted.add(job)
                submits[place] += 1
            case "receipt":
                verdict.acked.add(job)
            case "refused":
                verdict.refused[note["error"]] += 1
                finals[place] += 1
            case "final":
                finals[place] += 1
                verdict.results += 1
                if job:
                    verdict.acked.add(job)
                    outcomes[job].add(note["body"])
                if note["error"]:
                    verdict.failed[note["error"]] += 1
                elif _job_of(note["body"]) != job:
                    verdict.doubles.append((job, f"{producer} asked for it and got {note['body']}"))
            case other:
                verdict.problems.append(f"{producer}: {other} {note}")
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    runs: set[str] = set()
    for what, job, run in read_marks(folder / "marks"):
        if what == "begin":
            begun[job] += 1
        else:
            ended[job] += 1
            runs.add(run)
    verdict.runs = sum(begun.values())
    verdict.executions = sum(begun[job] for job in verdict.acked)
    verdict.lost = sorted(job for job in verdict.acked if not ended[job])
    for place, count in finals.items():
        if count > submits[place] and place[2]:
            producer, connection, request = place
            told = f"{count} answers to {submits[place]} submissions"
            verdict.doubles.append(
                (request, f"{producer}, connection {connection}, request {request}: {told}")
            )
    for job, bodies in outcomes.items():
        if len(bodies) > 1:
            verdict.doubles.append((job, f"answers that differ: {sorted(bodies)}"))
        verdict.doubles += [
            (job, f"a result of an execution that never ended: {body}")
            for body in bodies
            if (run := _run_of(body)) and run not in runs
        ]
    for stranger in sorted(begun.keys() - verdict.submitted)[:10]:
        verdict.problems.append(f"{stranger} ran and nobody asked for it")
    return verdict


def _read(body: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _job_of(body: str) -> str:
    return str(_read(body).get("job", ""))


def _run_of(body: str) -> str:
    return str(_read(body).get("run", ""))
