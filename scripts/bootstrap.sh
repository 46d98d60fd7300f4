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

# While something takes long: how long it has been at it, every second in one line of a terminal, every half
# minute in a log. It ends when this script closes its pipe, also by ending itself. It is not killed: a shell that
# gets a signal while it starts writes errors of its own into the log.
ticker() {
    local began=$SECONDS spent next=30
    while true; do
        # Above 128: nothing came within a second. Else: the pipe is closed.
        read -r -t 1 || [ $? -gt 128 ] || return 0
        spent=$((SECONDS - began))
        if [ -t 2 ]; then
            printf '\r\033[Ksetup: %s, %s s so far' "$1" "$spent" >&2
        elif [ "$spent" -ge "$next" ]; then
            next=$((next + 30))
            say "$1, $spent s so far"
        fi
    done
}
ticking=
start_ticker() {
    exec 9> >(ticker "$1")
    ticking=$!
}
stop_ticker() {
    [ -n "$ticking" ] || return 0
    exec 9>&-
    # Bash before 4.4 cannot wait for it.
    wait "$ticking" 2>/dev/null || true
    ticking=
    [ ! -t 2 ] || printf '\r\033[K' >&2
}
trap stop_ticker EXIT

say "installing the locked packages"
start_ticker "fetching packages"
"$uv" pip install --quiet --python .venv/bin/python -r requirements-dev.lock
stop_ticker

has_compiler() {
    local candidate
    for candidate in "${CC:-cc}" gcc clang; do
        ! command -v "${candidate%% *}" >/dev/null 2>&1 || return 0
    done
    return 1
}
case "${POLYBUS_NO_EXTENSION:-}" in
    "" | 0)
        if has_compiler; then
            doing="compiling polybus"
            say "compiling polybus: one to two minutes on two processors, less on more"
            say "(POLYBUS_NO_EXTENSION=1 make setup goes without: everything works, the broker is several times slower)"
        else
            doing="installing polybus"
            say "installing polybus; there is no C compiler, so its slower twins in plain Python are used"
        fi ;;
    *)
        doing="installing polybus"
        say "installing polybus without its compiled parts, because POLYBUS_NO_EXTENSION is set" ;;
esac
install_self() { "$uv" pip install --quiet --python .venv/bin/python --no-deps --reinstall-package polybus --editable .; }
# setup.py should do without a compiler by itself; if its build fails all the same, do without the extension.
start_ticker "$doing"
if ! failure=$(install_self 2>&1); then
    stop_ticker
    say "the optional extension could not be built; installing without it"
    POLYBUS_NO_EXTENSION=1 install_self || die "the installation failed even without the extension. It said first: $failure"
fi
stop_ticker

# The original implementations that the interop tests talk to: the tests themselves need no package index.
if [ -f tests/support/interop_env.py ]; then
    .venv/bin/python tests/support/interop_env.py || die "the peers of the interop tests are missing, see above"
fi

[ -x .venv/bin/polybus ] || die "the polybus command is missing from .venv/bin"
if .venv/bin/python -c 'import polybus.server._pump' 2>/dev/null; then
    say "ready; the compiled pump is built"
else
    say "ready; without the compiled parts: their twins in plain Python are used, correct but slower"
fi
