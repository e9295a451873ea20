# Sourced by the scripts beside it. Sees to it that what the project needs is installed, once, and sets
#   $checkout  the folder of this checkout
#   $python    an interpreter that has the project, in place, and all of its extras
# It takes the active virtual environment where that has all of it, else makes one in .venv.

checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

_say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# Whether interpreter $1 finds the project in this checkout, and the extras.
_has_needs() {
    "$1" - "$checkout" <<'PY' 2>/dev/null
import importlib.util, pathlib, sys

names = ("torch", "tensordict", "numpy", "filelock", "gymnasium", "matplotlib", "pytest", "pytest_timeout")
sys.path = [path for path in sys.path if path]
found = importlib.util.find_spec("shmreplay")
here = found and found.origin and pathlib.Path(sys.argv[1]) in pathlib.Path(found.origin).parents
sys.exit(0 if here and all(map(importlib.util.find_spec, names)) else 1)
PY
}

_find_base() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    _say "needs Python 3.11 or newer, and found none"
    return 1
}

# What the environment must have been made from; another answer than the stamp's makes pip look again.
_wanted() {
    (cd "$checkout" && pwd && sha256sum scripts/constraints.txt setup.cfg pyproject.toml)
}

_make_venv() {
    local venv="$checkout/.venv" base
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        base="$(_find_base)"
        "$base" -m venv --clear "$venv" || { _say "$base cannot make virtual environments (python3-venv?)"; return 1; }
    fi
    _say "installing into $venv (minutes the first time)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$checkout/scripts/constraints.txt" --editable "$checkout[train,test]" >&2
    _wanted >"$venv/.made-from"
}

_set_python() {
    if [[ -n "${VIRTUAL_ENV:-}" ]] && _has_needs "$VIRTUAL_ENV/bin/python"; then
        python="$VIRTUAL_ENV/bin/python"
        return
    fi
    python="$checkout/.venv/bin/python"
    [[ "$(cat "$checkout/.venv/.made-from" 2>/dev/null)" == "$(_wanted)" ]] && return
    exec {_lock}>"$checkout/.venv.lock"
    flock "$_lock" # two scripts started at once must not install into one folder
    [[ "$(cat "$checkout/.venv/.made-from" 2>/dev/null)" == "$(_wanted)" ]] || _make_venv
    exec {_lock}>&-
}

_set_python
