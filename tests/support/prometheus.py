"""A lint of metrics in Prometheus' text format: what `promtool check metrics` looks for, and a little more.

Reads with the client library's own parser; the rules are those of "Metric and label naming" and "Exposition
formats" in Prometheus' documentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

NAME = re.compile(r"polybus_[a-z][a-z0-9_]*")
LABEL = re.compile(r"[a-z][a-z0-9_]*")
# Units that are not base units, as the last word of a name.
NO_BASE_UNIT = re.compile(
    r"_(milliseconds|ms|microseconds|us|minutes|hours|days|kilobytes|kb|megabytes|mb|percent)$"
)
# What belongs at the end of certain kinds of metrics, and nowhere else.
RESERVED = re.compile(r"_(count|sum|bucket)$")


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families(text).values()
        for sample in family.samples
    }


def problems(text: str) -> list[str]:
    """What is wrong with them, in sentences; nothing if all is well."""
    return [*_of_lines(text.splitlines()), *_of_families(text_string_to_metric_families(text))]


def _of_lines(lines: list[str]) -> Iterator[str]:
    """What the parser is too kind to say."""
    told: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("#"):
            _, word, name, *rest = line.split(" ", 3)
            told.setdefault(name, []).append(word)
            if word == "HELP" and not (rest and rest[0].strip().endswith(".")):
                yield f"{name}: its help is no sentence"
            if word == "TYPE" and rest[0] == "untyped":
                yield f"{name}: has no type"
            # The parser would add it.
            if word == "TYPE" and rest[0] == "counter" and not name.endswith("_total"):
                yield f"{name}: is a counter and does not end in _total"
    for name, words in told.items():
        if words != ["HELP", "TYPE"]:
            yield f"{name}: has {words}, not one HELP and one TYPE, in this order"
    for line in lines:
        if line and not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            base = RESERVED.sub("", name)
            if name not in told and base not in told:
                yield f"{name}: is not described"


def _of_families(found: Iterable[Metric]) -> Iterator[str]:
    seen: set[str] = set()
    series: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in found:
        if family.name in seen:
            yield f"{family.name}: its samples do not stand together"
        seen.add(family.name)
        if not NAME.fullmatch(family.name):
            yield f"{family.name}: is no name for a metric of ours"
        if NO_BASE_UNIT.search(family.name):
            yield f"{family.name}: is not in base units (seconds, bytes)"
        if family.type != "histogram" and RESERVED.search(family.name):
            yield f"{family.name}: ends like a part of a histogram"
        if family.type == "gauge" and family.name.endswith("_total"):
            yield f"{family.name}: is a gauge and ends like a counter"
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key in series:
                yield f"{sample.name}{sample.labels}: is there twice"
            series.add(key)
            for label in sample.labels:
                if not LABEL.fullmatch(label):
                    yield f"{sample.name}: {label!r} is no name for a label"
            if family.type == "counter":
                if not sample.value >= 0:
                    yield f"{sample.name}: is a counter and has {sample.value}"
            elif family.type == "gauge" and math.isnan(sample.value):
                yield f"{sample.name}{sample.labels}: has no value"
        if family.type == "histogram":
            yield from _of_histogram(family)


def _of_histogram(family: Metric) -> Iterator[str]:
    groups: dict[frozenset[tuple[str, str]], list[Sample]] = {}
    for sample in family.samples:
        labels = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
        groups.setdefault(labels, []).append(sample)
    for labels, samples in groups.items():
        where = f"{family.name}{dict(labels)}"
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
        counts = [s.value for s in samples if s.name.endswith("_count")]
        sums = [s.value for s in samples if s.name.endswith("_sum")]
        if not buckets or buckets[-1][0] != math.inf:
            yield f"{where}: has no last bucket +Inf"
            continue
        if [bound for bound, _ in buckets] != sorted({bound for bound, _ in buckets}):
            yield f"{where}: its bounds do not rise"
        if [count for _, count in buckets] != sorted(count for _, count in buckets):
            yield f"{where}: its counts fall"
        if len(counts) != 1 or counts[0] != buckets[-1][1]:
            yield f"{where}: _count is not what the bucket +Inf says"
        if len(sums) != 1:
            yield f"{where}: has {len(sums)} sums"
