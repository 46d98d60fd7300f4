"""A program whose spans are kept in memory and written to a file when it ends.

    python traced.py SPANS.json serve --any-port …        any command of polybus
    python traced.py SPANS.json script.py …               a program of a test's own

Each has a tracer provider of its own with OpenTelemetry's in-memory exporter, as an application would set it.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

THIS = Path(__file__)


def command(spans: Path, *words: str | Path) -> list[str]:
    """What starts it."""
    return [sys.executable, str(THIS), str(spans), *map(str, words)]


class Spans:
    """What programs wrote."""

    def __init__(self, *files: Path) -> None:
        self.all: list[dict[str, Any]] = [span for file in files for span in json.loads(file.read_text())]

    def one(self, name: str) -> dict[str, Any]:
        found = [span for span in self.all if span["name"] == name]
        assert len(found) == 1, (name, [span["name"] for span in self.all])
        return found[0]


def _view(span: Any) -> dict[str, Any]:
    context = span.get_span_context()
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": format(context.trace_id, "032x"),
        "span": format(context.span_id, "016x"),
        "parent": format(span.parent.span_id, "016x") if span.parent else "",
        "state": dict(context.trace_state),
        "attributes": dict(span.attributes),
        "events": [{"name": event.name, **event.attributes} for event in span.events],
        "status": span.status.status_code.name,
        "said": span.status.description or "",
        "took_s": (span.end_time - span.start_time) / 1e9,
    }


def main() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, *words = sys.argv[1:]
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    sys.argv = words
    try:
        if words[0].endswith(".py"):
            runpy.run_path(words[0], run_name="__main__")
        else:
            from polybus.cli.main import main as polybus

            sys.argv = ["polybus", *words]
            polybus()
    finally:
        provider.force_flush()
        Path(spans).write_text(json.dumps([_view(span) for span in memory.get_finished_spans()]))


if __name__ == "__main__":
    main()
