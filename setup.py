"""Builds the one optional extension; everything else is in pyproject.toml.

polybus works without it: when there is no Cython or no C compiler, or when POLYBUS_NO_EXTENSION=1 is
set, the installation says so and goes on, and the broker uses the pump written with pyzmq alone.
"""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

WITHOUT = "polybus is installed without its compiled pump and will use the slower pyzmq one"


class BuildOptional(build_ext):
    """A failed build is a word to the user, not the end of the installation."""

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
    pump = Extension("polybus.server._pump", ["src/polybus/server/_pump.pyx"], optional=True)
    try:
        built = cythonize([pump], build_dir="build")
    except CythonError as error:
        print(f"{WITHOUT}: this version of Cython does not take it ({error}).")
        return []
    for extension in built:
        extension.optional = True  # cythonize makes new objects and forgets this
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOptional})
