"""Jobs: functions that run in a worker, some time later, exactly as often as they must.

    @bus.job(queue="email", retries=3)
    def send(to: str, subject: str) -> str: ...

    send("a@b", "hi")                       # just the function
    handle = send.delay("a@b", "hi")        # the broker has it, on disk
    handle.get(timeout_s=30)                # what it returned

A `Job` is the function with its settings, a `Call` one call of it with arguments (`send.s("a@b", "hi")`).
Calls, chains and groups (`flows`) can be sent; all of them give a `JobHandle`.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from msgspec import structs

from polybus.client import questions
from polybus.client.annotations import ArgumentReader, ResultReader
from polybus.client.calls import Call
from polybus.client.handles import JobHandle, R, Schedule
from polybus.client.questions import JobSettings, Settings
from polybus.errors import ConfigError

if TYPE_CHECKING:
    from polybus.client.app import Bus

P = ParamSpec("P")
# What calling the function itself gives: the result, or a coroutine of it.
D = TypeVar("D")


class Job(Generic[P, R, D]):
    """A function that can be sent to workers. Calling it runs it here, as ever."""

    def __init__(
        self, bus: Bus, function: Callable[P, D], settings: Settings, name: str | None = None
    ) -> None:
        if not inspect.isfunction(function):
            raise ConfigError(f"{function!r} is no function; decorate a function with bus.job")
        if name is None:
            self.path, self.callable = _module_of(function), function.__qualname__
        else:
            self.path, _, self.callable = name.rpartition(".")
            if not self.path or not self.callable:
                raise ConfigError(f"the name of a job is {name!r}; it takes module.function")
        self.bus: Final = bus
        self.function: Final = function
        self.name: Final = f"{self.path}.{self.callable}"
        self.settings: Final = questions.check_settings(settings, self.name)
        self.is_async: Final = inspect.iscoroutinefunction(function)
        self._signature = inspect.signature(function)
        self._positions = _positions(self._signature)
        self._arguments: ArgumentReader | None = None
        self._results: ResultReader | None = None
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> D:
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    # -- sending --------------------------------------------------------------------------------

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Have it run with these arguments; returns when the broker has it on disk."""
        return Call(self, args, kwargs, self.settings).send()

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await Call(self, args, kwargs, self.settings).asend()

    def send(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        delay_s: float = 0.0,
        ttl_s: float | None = None,
        wait: bool = True,
        **settings: Unpack[JobSettings],
    ) -> JobHandle[R]:
        """The same with full control: settings of this one call, and what `Sendable.send` takes."""
        call = Call(self, args, kwargs or {}, self.with_settings(settings))
        return call.send(id=id, delay_s=delay_s, ttl_s=ttl_s, wait=wait)

    async def asend(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        delay_s: float = 0.0,
        ttl_s: float | None = None,
        wait: bool = True,
        **settings: Unpack[JobSettings],
    ) -> JobHandle[R]:
        call = Call(self, args, kwargs or {}, self.with_settings(settings))
        return await call.asend(id=id, delay_s=delay_s, ttl_s=ttl_s, wait=wait)

    def s(self, *args: Any, **kwargs: Any) -> Call[R]:
        """A call to be sent later, alone or in a chain, a group or with `bus.send_many`.

        In a chain, the result of the job before comes in front of these arguments.
        """
        return Call(self, args, kwargs, self.settings)

    def with_settings(self, changes: JobSettings, settings: Settings | None = None) -> Settings:
        settings = settings or self.settings
        if not changes:
            return settings
        return questions.check_settings(structs.replace(settings, **changes), self.name)

    # -- schedules ------------------------------------------------------------------------------

    def schedule(
        self,
        *,
        every_s: float | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        key: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        runs: int | None = None,
        haste: bool = False,
        missed: str | None = None,
        **settings: Unpack[JobSettings],
    ) -> Schedule:
        """Have it run every so many seconds, or by a cron expression, until the schedule is removed.

        Setting a schedule with the same `key` replaces it, so a program may do so whenever it starts;
        without a key it is the job's name and arguments.  `runs` ends it after so many, `haste` runs it
        at once for the first time, `missed` says what becomes of times at which the broker was down:
        "late" runs one of them late, "skip" none.
        """
        key, question = self._schedule_question(locals())
        answer = self.bus.do(questions.schedule(key, question, self.bus.timeout_s))
        return Schedule(self.bus, str(answer["key"]), answer.get("next_at"))

    async def aschedule(
        self,
        *,
        every_s: float | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        key: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        runs: int | None = None,
        haste: bool = False,
        missed: str | None = None,
        **settings: Unpack[JobSettings],
    ) -> Schedule:
        key, question = self._schedule_question(locals())
        answer = await self.bus.ado(questions.schedule(key, question, self.bus.timeout_s))
        return Schedule(self.bus, str(answer["key"]), answer.get("next_at"))

    def _schedule_question(self, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        what = f"the schedule of {self.name}"
        every_s, cron = given["every_s"], given["cron"]
        if (every_s is None) == (cron is None):
            raise ConfigError(f"{what} takes every_s or cron, one of them")
        questions.check_seconds("every_s", every_s, what)
        if every_s is not None and every_s <= 0:
            raise ConfigError(f"every_s of {what} is {every_s!r}; it takes more than 0 seconds")
        call = Call(self, given["args"], given["kwargs"] or {}, self.with_settings(given["settings"]))
        message = call.message()
        settings = call.settings
        question = {
            "do": "add",
            "queue": settings.queue,
            "message": message.decode(),
            "key": given["key"] or self._schedule_key(call, message),
            "every_s": every_s,
            "cron": cron,
            "haste": given["haste"],
            "guarantee": settings.guarantee,
        }
        for name in ("timezone", "runs", "missed"):
            question[name] = given[name]
        for name in ("retries", "timeout_s", "backoff_s"):
            question[name] = getattr(settings, name)
        return question["key"], {name: value for name, value in question.items() if value is not None}

    def _schedule_key(self, call: Call[R], message: bytes) -> str:
        if not call.args and not call.kwargs:
            return self.name
        return f"{self.name}:{hashlib.sha256(message).hexdigest()[:12]}"

    # -- running --------------------------------------------------------------------------------

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise what Python itself would raise, here instead of in the worker."""
        if self.path == "__main__" and not self.bus.desk.is_here:
            raise ConfigError(
                f"{self.callable} is defined in the program that runs, whose module is called __main__: a "
                "worker cannot import it by that name. Move it to a module of its own and import it, or give "
                f'it the name under which workers know it: @bus.job(name="module.{self.callable}")'
            )
        if not kwargs and len(args) in self._positions:
            # Nearly all calls, and binding costs as much as everything else about them.
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    def invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> D:
        """Call the function with arguments that came as JSON, turned into what its annotations say."""
        if self._arguments is None:
            self._arguments = ArgumentReader(self.name, self.function)
        args, kwargs = self._arguments.read(args, kwargs)
        function: Callable[..., D] = self.function
        return function(*args, **kwargs)

    def read_result(self, body: bytes) -> R:
        if self._results is None:
            self._results = ResultReader(self.function)
        value: R = self._results.read(body)
        return value

    def __repr__(self) -> str:
        return f"<Job {self.name}>"


def _positions(signature: inspect.Signature) -> range:
    """How many arguments by position fit, if none is given by name."""
    parameters = signature.parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return range(0)
    needed = sum(p.default is p.empty for p in by_position)
    most = 1_000 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(by_position)
    return range(needed, most + 1)


def _module_of(function: Callable[..., Any]) -> str:
    """The name under which a worker imports a function's module; `python -m shop.mail` calls it __main__."""
    if function.__module__ == "__main__":
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and not spec.name.endswith(".__main__"):
            return str(spec.name)
    return function.__module__
