#!/bin/sh
# Make a virtual environment and install the project, with one dependency group if it is given; with a group that runs
# tests, the conformance suites too.
# usage: venv.sh PYTHON FOLDER [GROUP]   (UV=path of uv, or empty)
set -eu
python=$1 folder=$2 group=${3:-} suites=
case $group in dev | test | bench | free-threaded) suites=1 ;; esac
echo "setting up $folder${group:+ ($group)} ..." >&2
make() {
    if [ -n "${UV:-}" ]; then
        [ -x "$folder/bin/python" ] || "$UV" venv -q --python "$python" "$folder" || return
        VIRTUAL_ENV=$folder "$UV" pip install -q --python "$folder/bin/python" -e . ${suites:+-e ./conformance} ${group:+--group "$group"}
    else
        [ -x "$folder/bin/python" ] || "$python" -m venv "$folder" || return
        # dependency groups need pip 25.1
        [ -z "$group" ] || "$folder/bin/python" -m pip --version | grep -qE '^pip (2[6-9]|25\.[1-9])' ||
            "$folder/bin/python" -m pip install -q --no-compile --upgrade 'pip>=25.1' || return
        # of the many packages of a group few modules are ever imported: Python compiles those when they are
        "$folder/bin/python" -m pip install -q --retries 10 -e . ${suites:+-e ./conformance} ${group:+--no-compile --group "$group"}
    fi
}
for pause in 2 10; do  # an index may hiccup
    make && exit 0
    echo "that failed; trying again in $pause s ..." >&2
    sleep "$pause"
done
make
