"""The figures of the dialects that the documents name."""

from __future__ import annotations

from types import ModuleType

import pytest

from polybus.dialects import bridge, emqp, ended

# docs/protocol-notes.md: the last so many peers are remembered.
FIGURES: dict[ModuleType, dict[str, object]] = {
    emqp: {"MAX_RECENT_CLIENTS": 65_536},
    ended: {"MAX_ENDED": 10_000},
}
MAGNITUDES: dict[ModuleType, dict[str, float]] = {bridge: {"VALUES_EVERY_S": 0.01}}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, figures in FIGURES.items() for name in figures]
)
def test_figures_are_what_the_documents_say(module: ModuleType, name: str) -> None:
    assert getattr(module, name) == FIGURES[module][name]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, sizes in MAGNITUDES.items() for name in sizes]
)
def test_what_no_document_names_has_its_order_of_magnitude(module: ModuleType, name: str) -> None:
    about = MAGNITUDES[module][name]
    assert about / 2 <= getattr(module, name) <= about * 2
