#!/usr/bin/env bash
# Makes .venv with the locked packages and polybus itself in editable mode.
#
# Needs only Python 3.11 or newer and the package index. If uv is not on PATH it is installed into
# .uv/. Without a C compiler the optional extension is left out, and polybus uses its pure twin.
#
#   scripts/bootstrap.sh          set everything up
#   scripts/bootstrap.sh uv       print the path of uv, installing it first if need be
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3"
}

find_uv() {
    if command -v uv; then
        return
    fi
    if [ ! -x .uv/bin/uv ]; then
        say "installing uv into .uv"
        rm -rf .uv
        # A venv needs ensurepip, which some distributions split off; --target does with pip alone.
        if "$python" -m venv .uv >/dev/null 2>&1; then
            .uv/bin/python -m pip install --quiet --disable-pip-version-check uv >&2 || rm -rf .uv
        else
            rm -rf .uv
            "$python" -m pip install --quiet --disable-pip-version-check --target .uv uv >&2 || rm -rf .uv
        fi
        [ -x .uv/bin/uv ] || die "could not install uv with $python. Either install uv yourself so that it is
on PATH, or give this Python venv and pip (Debian, Ubuntu: apt install python3-venv python3-pip),
check that the package index can be reached (pip download uv), and run make setup again"
    fi
    echo "$PWD/.uv/bin/uv"
}

python=$(find_python)
uv=$(find_uv)
if [ "${1:-}" = uv ]; then
    echo "$uv"
    exit
fi

export UV_PYTHON_DOWNLOADS=never

if ! new_enough .venv/bin/python; then
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$uv" venv --quiet --python "$("$python" -c 'import sys; print(sys.executable)')" .venv
fi

say "installing the locked packages"
"$uv" pip install --quiet --python .venv/bin/python -r requirements-dev.lock

say "installing polybus in editable mode; with a C compiler this takes a minute or two"
install_self() { "$uv" pip install --quiet --python .venv/bin/python --no-deps --reinstall-package polybus --editable .; }
# setup.py should do without a compiler by itself; if its build fails all the same, do without the extension.
if ! failure=$(install_self 2>&1); then
    say "the optional extension could not be built; installing without it"
    POLYBUS_NO_EXTENSION=1 install_self || die "the installation failed even without the extension. It said first: $failure"
fi

[ -x .venv/bin/polybus ] || die "the polybus command is missing from .venv/bin"
if .venv/bin/python -c 'import polybus.server._pump' 2>/dev/null; then
    say "ready; the compiled pump is built"
else
    say "ready; no compiled pump (no C compiler?): the pure Python twin is used, correct but slower"
fi
