from collections.abc import Callable

from polybus.core.actions import Observed
from polybus.core.model import Body
from polybus.core.records import Request

class CompiledRecorder:
    kind: str
    body_bytes: int
    drops_bodies: bool
    keeps_bodies: Callable[[bytes], bool] | None
    @property
    def count(self) -> int: ...
    @property
    def bodies_dropped(self) -> int: ...
    def __init__(self, body_bytes: int = 0, keeps_bodies: Callable[[bytes], bool] | None = None) -> None: ...
    def note_request(
        self,
        what: str,
        request: Request,
        now: float,
        offset: float,
        reason: str,
        detail: str,
        body: Body | None,
    ) -> None: ...
    def note_dead(
        self, request: Request, now: float, offset: float, reason: str, detail: str, body: Body
    ) -> None: ...
    def note_published(self, topic: bytes, body: Body, now: float, offset: float) -> None: ...
    def note(self, observed: Observed, offset: float) -> None: ...
    def take(self) -> tuple[int, bytes]: ...
