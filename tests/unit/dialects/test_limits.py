"""The figures of the dialects that the documents name."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from msgspec import Struct

from polybus.config.sections import EbusSettings, EmqpSettings, MajordomoSettings
from polybus.dialects import bridge, emqp, ended
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import Emqp
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2

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


# Without Mdr, whose compiled form does not tell its arguments.
@pytest.mark.parametrize(
    ("dialect", "settings", "names"),
    [
        (Ebus, EbusSettings, {"heartbeat_s", "liveness", "expiry_s", "worker_credit", "strict"}),
        (Emqp, EmqpSettings, {"heartbeat_s", "timeout_s", "liveness", "default_queue", "strict"}),
        (Mdp1, MajordomoSettings, {"heartbeat_s", "liveness"}),
        (Mdp2, MajordomoSettings, {"heartbeat_s", "liveness"}),
    ],
)
def test_a_dialect_without_settings_has_the_defaults_of_the_settings(
    dialect: type, settings: type[Struct], names: set[str]
) -> None:
    arguments = inspect.signature(dialect).parameters
    defaults = dict(
        zip(reversed(settings.__struct_fields__), reversed(settings.__struct_defaults__), strict=False)
    )
    for name in names:
        value = arguments[name].default
        assert (value.decode() if isinstance(value, bytes) else value) == defaults[name], name
