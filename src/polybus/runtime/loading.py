"""Loading an application: `module:attribute`, and what is in it.

Only children do this, each anew, so what an application does when it is imported happens where its jobs run,
and a changed source is what the next child gets.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from typing import Final

from polybus.client.app import Bus
from polybus.errors import ConfigError
from polybus.runtime.pipe import Facts

DEFAULT_QUEUE: Final = "default"


def load(name: str) -> Bus:
    """The bus that `name` means; `ConfigError` says what is wrong and what to do."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(
            f"{name!r} does not name an application; it takes module:attribute, for example shop.app:bus "
            "for 'bus = polybus.Bus()' in shop/app.py"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    # A program that serves when it is run is an application as well.
    Bus.is_loading = True
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(module_name, error, here)) from None
    except Exception as error:
        raise ConfigError(
            f"{module_name} cannot be imported, because it raised {type(error).__name__}: {error} "
            f"({_where(error)})"
        ) from error
    finally:
        Bus.is_loading = False
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name} has no {attribute}{_near(module_name)}")
        found = getattr(found, part)
    if not isinstance(found, Bus):
        raise ConfigError(
            f"{name} is a {type(found).__name__}, not a polybus.Bus; name the bus itself{_near(module_name)}"
        )
    if not found.jobs and not found.services and not found.allowed:
        raise ConfigError(
            f"{name} has no jobs and no services; decorate functions with @bus.job or @bus.service, and "
            "import the modules they are in where the bus is made"
        )
    return found


def _missing(module: str, error: ModuleNotFoundError, here: str) -> str:
    if error.name and (module == error.name or module.startswith(error.name + ".")):
        return (
            f"there is no module {error.name} in {here} or where Python looks; start this in the directory "
            "that holds it, or set PYTHONPATH"
        )
    return f"{module} cannot be imported, because {error.name} is not installed ({_where(error)})"


def _near(module: str) -> str:
    """The buses of a module, to choose from."""
    buses = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, Bus)]
    if not buses:
        return f"; there is no polybus.Bus in {module}: make one with 'bus = polybus.Bus()'"
    return f"; did you mean {' or '.join(f'{module}:{key}' for key in buses)}?"


def _where(error: BaseException) -> str:
    """The file and line of an exception, as deep as it goes, without the machinery of imports."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "while it was looked for"


def facts_of(bus: Bus) -> Facts:
    queues: dict[str, int | None] = dict.fromkeys(bus.queues)
    queues |= {name: bus.weights.get(name) for name in bus.services}
    if not queues:
        # Only functions that were let in by a pattern: EventMQ clients send where they send to by default.
        queues = {DEFAULT_QUEUE: None}
    return Facts(queues, len(bus.jobs), len(bus.services), bus.address, loaded_files(), bus.worker_tag)


def loaded_files() -> list[str]:
    """The sources of all modules but those that are installed or belong to Python."""
    paths = sysconfig.get_paths()
    outside = tuple(
        {os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    )
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
    files = {
        os.path.realpath(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and file.endswith(".py")
    }
    return sorted(file for file in files if not file.startswith((*outside, own)))
