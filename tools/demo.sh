#!/bin/sh
# demo.sh TILEWISE: what ./tw demo shows, in about three minutes: attention on real input by every
# implementation, what words attend to, and the seeds' table for this machine.
set -eu

tilewise=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
input=$root/examples/data/minilm_layer5_qkv.safetensors

title() { printf '\n%s\n\n' "== $* =="; }

title 'Attention on real input'
cat <<'EOF'
Input: Q, K and V of the last layer of all-MiniLM-L6-v2 (12 heads, 206 tokens, dim 32) for the
last paragraph of Darwin's Origin of Species. Every implementation is compared with a float64
reference:

EOF
"$tilewise" run "$input" --impl all --compare reference --repeat 10 \
  --attended birds@11,animals@11,reproduction@8,extinction@4,contemplate --top 3

printf '\n%s\n' 'Above: the three words that each word attends to most, in one head or on average.'

title 'Time and memory over the sequence length'
cat <<'EOF'
The grid of the seeds (docs/origins.md): float32, batch 8, one head, forward and backward. eager
stores the S x S matrices S and P for its backward. flash stores only O and LSE. OOM means more than
75 % of this machine's memory. Ctrl-C stops and keeps the finished rows.

EOF
"$tilewise" bench --preset demo --budget-s 20 --total-s 150

title 'More'
cat <<'EOF'
  tilewise bench --help      measures your sizes, types and masks; Markdown, CSV or JSON
  tilewise plan --help       predicts memory, kernel and time
  tilewise check             compares this machine's kernels with the reference
EOF
printf '\n(tilewise is %s)\n' "$tilewise"
