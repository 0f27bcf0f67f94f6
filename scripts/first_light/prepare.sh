#!/usr/bin/env bash
# Prepares first light for a machine with a GPU and no network: Tatoeba en-de goes to .gpu and wheels go to .whl, both in
# the root of the checkout and ignored by git. Needs a network and no GPU.
#   bash scripts/first_light/prepare.sh DIR [PACKAGE...]
# DIR has train, dev and test.en-de.tsv.gz, or is next to the folder tatoeba that has them.
# Without packages it takes those of wheels.txt; first light names what a machine lacks. PYTHON_VERSIONS are those that
# the other machine may have, by default all that mtx supports.
set -euo pipefail
if [ $# -lt 1 ]; then sed -n '2,7s/^# *//p' "$0" >&2; exit 2; fi
here=$(cd "$(dirname "$0")" && pwd) data=$1
shift
[ -f "$data/train.en-de.tsv.gz" ] || data=$data/../tatoeba
for name in {train,dev,test}.en-de.tsv.gz; do
    [ -f "$data/$name" ] || { echo "error: $data: has no $name; name the directory of Tatoeba" >&2; exit 2; }
done
data=$(cd "$data" && pwd)
cd "$here/../.."
rm -rf .whl
mkdir -p .gpu/tatoeba .whl
[ "$data" -ef .gpu/tatoeba ] || cp "$data"/{train,dev,test}.en-de.tsv.gz .gpu/tatoeba
if [ $# -gt 0 ]; then printf '%s\n' "$@"; else cat "$here/wheels.txt"; fi > .whl/asked.txt
platforms=(--platform manylinux2014_x86_64)
for minor in {17..39}; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done # pip compares them literally
for version in ${PYTHON_VERSIONS:-3.11 3.12 3.13}; do
    python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation cp \
        --python-version "$version" "${platforms[@]}" --dest .whl --requirement .whl/asked.txt 2> >(grep -v WARNING >&2)
done
rm -f .whl/{numpy,torch}-*.whl # what others need of these, the machine has
for wheel in .whl/*.whl; do name=${wheel##*/}; echo "${name%%-*}"; done | sort -u > .whl/packages.txt
du -sh .gpu .whl
