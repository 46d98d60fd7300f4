"""Builds what may be compiled; everything else is in pyproject.toml.

Two things are: the pump (`_pump.pyx`), and the modules that every request passes, whose plain Python sources
are compiled as they are, with the declarations in the `.pxd` files beside them.  polybus works without any of
it: when there is no Cython or no C compiler, or when POLYBUS_NO_EXTENSION=1 is set, the installation says
so and goes on, with the pump written with pyzmq alone and the same sources interpreted.
"""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

WITHOUT = "polybus is installed without its compiled parts and will use the slower twins"

# In the order in which a request meets them.
HOT_MODULES = (
    "dialects/port",
    "wire/mdr",
    "dialects/crossing",
    "dialects/majordomo",
    "dialects/mdr",
    "core/records",
    "core/actions",
    "core/journal",
    "core/tables",
    "core/intake",
    "core/replies",
    "core/dispatching",
    "core/requests",
    "server/effects",
    # Those that a guaranteed job meets besides.
    "core/timers",
    "core/rows",
    "core/durable",
    "core/written",
    "core/desk",
    "core/bus",
    "core/envelope",
    "wire/emqp_extension",
    "dialects/emqp_voices",
    "dialects/emqp",
    "store/codec",
    "store/shelf",
    "store/shelves",
    "server/scribe",
    # And the loop itself.
    "server/beacon",
    "server/bridge",
    "server/broker",
    # And those that a publication meets.
    "dialects/pubsub",
    "core/topics",
    "core/last_values",
    "wire/zmtp",
    "server/audiences",
    "server/subscriber",
    "server/delivery",
    "server/subscribers",
)
# Types are declared in the .pxd files alone; an attribute of None is an error, not a crash.
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "nonecheck": True}


class BuildOptional(build_ext):
    """A failed build is a word to the user, not the end of the installation."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception as error:
            print(f"{WITHOUT}: it could not be compiled. Install a C compiler (gcc or clang) and reinstall.")
            # The one error after which setuptools goes on without an optional extension;
            # a compiler that is not there at all would otherwise stop it with FileNotFoundError.
            raise CompileError(str(error)) from error


def extensions():
    if os.environ.get("POLYBUS_NO_EXTENSION", "") not in ("", "0"):
        print(f"{WITHOUT}: POLYBUS_NO_EXTENSION is set.")
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError as CythonError
    except ImportError:
        print(f"{WITHOUT}: Cython is not there. Install Cython and reinstall.")
        return []
    pump = Extension("polybus.server._pump", ["src/polybus/server/_pump.pyx"])
    hot = [Extension("polybus." + name.replace("/", "."), [f"src/polybus/{name}.py"]) for name in HOT_MODULES]
    recorder = Extension("polybus.journal._recorder", ["src/polybus/journal/_recorder.pyx"])
    columns = Extension("polybus.journal._columns", ["src/polybus/journal/_columns.pyx"])
    try:
        built = cythonize([pump, recorder, columns], build_dir="build", include_path=["src"])
        built += cythonize(hot, build_dir="build", compiler_directives=DIRECTIVES, include_path=["src"])
    except CythonError as error:
        print(f"{WITHOUT}: this version of Cython does not take it ({error}).")
        return []
    for extension in built:
        extension.optional = True  # cythonize makes new objects and forgets this
        # Debug information doubles the time that this takes, and nobody looks at it.
        extension.extra_compile_args = ["-O2", "-g0"]
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOptional})
