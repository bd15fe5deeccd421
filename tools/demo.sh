#!/bin/sh
# demo.sh TILEWISE: what ./tw demo shows.
set -eu
tilewise=$1
"$tilewise" info
