#!/bin/sh
# What bench/results/CARD compares with peers: presets in one process, on one Hopper card.
#
#   bench/peers/card.sh BUILD LIBFA3 OUT [PART...]
#
# BUILD holds libtilewise.so and tilewise, LIBFA3 is the library that fa3.py names, OUT is a folder. Parts,
# with minutes on a card: grid (2), leaderboard (1), assignment (3.5), flex (1.5), fp16 (0.5), seeds
# (1.5), seed-protocol (2), asam (0.3), paths (0.5), options, scaling; all of these by default. Besides,
# training, packed, vision, small, cross, serving, drawn (shapes of tools/cases/drawn_shapes.py with the
# seed DRAWN), served (the same of a server): the plan's own choice beside every row and the peers; lists (2, with
# FlexAttention's compilation 5): bench/lists.py; shared (0.5): bench/shared.py; expressions (1.5): functions beside flex_attention. What is
# finished stays when a run is interrupted; with TOTAL_S in the environment each part stops after
# that many seconds.
set -eu
build=$1 fa3=$2 out=$3
shift 3
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$here"
sm80=flash_fwd_sm80+flash_bwd_sm80
sm80_f32=f32:flash_fwd_sm80+flash_bwd_twopass_sm80
sm90=flash_fwd_sm90+flash_bwd_sm90

words=
add() { # PART FLAGS...
  part=$1
  shift
  words="$words ${words:+--then} measure --build $build --fa3 $fa3 -o $out/$part.json"
  words="$words ${TOTAL_S:+--total-s $TOTAL_S} $*"
}
[ $# -gt 0 ] || set -- grid leaderboard assignment flex fp16 seeds seed-protocol asam paths options \
  scaling
for part in "$@"; do
  case $part in
    grid)
      add grid --preset grid --peers cudnn,fa2,fa3 --kernel $sm90 --kernel $sm80 --compile-jobs 14
      ;;
    leaderboard)
      add leaderboard --preset leaderboard --peers cudnn,fa2,fa3 --kernel $sm90 --kernel $sm80 \
        --protocol burst,sustained,board --compile-jobs 14
      ;;
    assignment)
      add assignment --preset assignment --peers cudnn,fa2,memeff,torch-eager --rounds 2 \
        --kernel bf16:$sm90 --kernel bf16:$sm80 --kernel $sm80_f32 --compile-jobs 14
      ;;
    flex)
      add flex --preset grid --seq 2048,8192 --dim 64,128 --peers cudnn,fa3,flex --kernel $sm90 \
        --protocol burst,sustained --compile-jobs 14
      ;;
    fp16)
      add fp16 --preset grid --dtype f16 --seq 1024,8192 --peers cudnn,fa2,fa3 --kernel $sm90 \
        --kernel $sm80 --compile-jobs 14
      ;;
    seeds)
      add seeds --preset seed-eager --impl eager,fused,flash,baseline --rounds 2 --mem-limit 24 \
        --peers memeff,torch-eager,torch-compile --kernel $sm80_f32 --compile-jobs 14
      ;;
    seed-protocol)
      add seed-protocol --preset seed-eager --impl eager,fused,flash --protocol seed --mem-limit 24 \
        --peers torch-eager,torch-compile,memeff --kernel $sm80_f32 --compile-jobs 14
      ;;
    asam) add asam --preset seed-asam --peers torch-eager,cudnn,memeff --rounds 2 --compile-jobs 14 ;;
    paths)
      add paths --preset grid --seq 1024,4096 --dim 64,128 --kernel $sm90 --compile-jobs 14 --rounds 2 \
        --peers cudnn,fa2,fa3,memeff,math,flex,torch-eager,torch-compile
      ;;
    options)
      add options --preset hopper-options --peers cudnn,fa2,fa3,flex --kernel $sm90 --compile-jobs 14
      ;;
    drawn)
      mkdir -p "$out/cases/presets"
      python3 "$here/tools/cases/drawn_shapes.py" "${DRAWN:-$(date +%Y%m%d)}" > "$out/cases/presets/drawn.txt"
      add drawn --cases "$out/cases" --preset drawn --peers cudnn,fa2,fa3 --kernel plan \
        --rounds "${ROUNDS:-2}" --compile-jobs 14
      ;;
    served)
      mkdir -p "$out/cases/presets"
      python3 "$here/tools/cases/drawn_shapes.py" "${DRAWN:-$(date +%Y%m%d)}" --serving > "$out/cases/presets/served.txt"
      add served --cases "$out/cases" --preset served --peers cudnn,fa3 --kernel plan \
        --kernel flash_decode_sm90+ --kernel flash_fwd_sm90+ --rounds "${ROUNDS:-2}" --compile-jobs 14
      ;;
    training | packed | vision | small | cross)
      add "$part" --preset "$part" --peers cudnn,fa2,fa3 --kernel plan --kernel $sm90 --kernel $sm80 \
        --kernel +flash_bwd_twopass_sm80 --rounds "${ROUNDS:-2}" --compile-jobs 14
      ;;
    serving)
      add serving --preset serving --peers cudnn,fa3 --kernel plan --kernel flash_decode_sm90+ \
        --kernel flash_fwd_sm90+ --rounds "${ROUNDS:-2}" --compile-jobs 14
      ;;
    expressions) # functions of scores and masks, beside flex_attention: a program of its own
      python3 -m bench.peers.expressions --build "$build" -o "$out/expressions.json" ||
        echo "expressions: the run ended early"
      ;;
    lists) # block lists and their selection, beside dense attention: a program of its own
      python3 "$here/bench/lists.py" "$build" "$out/lists.json" --backward --select --flex \
        --seqs 4096 8192 16384 32768 --seconds "${TOTAL_S:-600}" ||
        echo "lists: an output was refused, or the run ended early"
      ;;
    shared) # shared prefixes and trees beside their ideals: a program of its own
      python3 "$here/bench/shared.py" "$build" "$out/shared.json" --seconds "${TOTAL_S:-120}" ||
        echo "shared: an output was refused, or the run ended early"
      ;;
    scaling) add scaling --preset baseline-scaling --kernel $sm80_f32 ;;
    *)
      echo "card.sh: no part $part" >&2
      exit 2
      ;;
  esac
done
# shellcheck disable=SC2086
[ -z "$words" ] || python3 -m bench.peers $words || echo "an output was refused, or the run ended early: see the rows"

choose() { # OURS RESULT PART...
  ours=$1 result=$2
  shift 2
  files=
  for part in "$@"; do [ ! -e "$out/$part.json" ] || files="$files $out/$part.json"; done
  # shellcheck disable=SC2086
  [ -z "$files" ] || python3 -m bench.peers select --ours "$ours" -o "$out/$result.json" $files
}
for arch in sm80 sm90; do
  choose $arch grid-$arch grid flex
  choose $arch fp16-$arch fp16
  choose $arch leaderboard-$arch leaderboard
  choose $arch assignment-$arch assignment
done
for name in fused flash; do choose $name seed-$name-sm80 seeds; done
choose eager,baseline seed-eager-sm80 seeds
choose "" seed-protocol-sm80 seed-protocol
choose "" seed-asam-sm90 asam
choose "" paths-sm90 paths
choose "" options-sm90 options
choose "" baseline-scaling-sm80 scaling
