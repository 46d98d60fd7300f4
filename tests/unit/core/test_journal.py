"""The port that a journal fills: all of it, because what is not written down would be missed by nobody."""

from __future__ import annotations

import pytest

from polybus.core.actions import Observed
from polybus.core.journal import Journal
from support.stage import Stage


def test_a_journal_that_leaves_something_out_is_none() -> None:
    stage = Stage()
    stage.submit("c", "1")
    request = stage.request("c", "1")
    journal = Journal()
    with pytest.raises(NotImplementedError):
        journal.note_request("accepted", request, stage.now, 0.0, "", "", None)
    with pytest.raises(NotImplementedError):
        journal.note_dead(request, stage.now, 0.0, "expired", "", [])
    with pytest.raises(NotImplementedError):
        journal.note_published(b"t", [], stage.now, 0.0)
    with pytest.raises(NotImplementedError):
        journal.note(Observed(stage.now, "started"), 0.0)
