#!/bin/sh
# Writes tools/requirements/NAME.lock for what ./tw test installs: every package with its version and
# the hashes of its files, for any Python on Linux from 3.11 on. Called by ./tw lock.
set -eu
cd "$(dirname -- "$0")/.."

[ -x build/lock/bin/uv ] || {
  python3 -m venv build/lock
  build/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
}
for name in python torch minilm lint report; do
  options=''
  [ "$name" != minilm ] || options=--no-deps
  # shellcheck disable=SC2086  # no option, or one
  build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate $options "tools/requirements/$name.txt" |
    awk '/^[^ ]/ { other = /sys_platform == .(win32|emscripten|darwin)/ && !/== .linux/ } !other' \
      >"tools/requirements/$name.lock.new"
  mv "tools/requirements/$name.lock.new" "tools/requirements/$name.lock"
done
