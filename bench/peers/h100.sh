#!/bin/sh
# What bench/results/h100 compares with peers: seven presets, one process, one card.
#
#   bench/peers/h100.sh BUILD LIBFA3 OUT
#
# BUILD holds libtilewise.so and tilewise, LIBFA3 is made by fa3/build.sh, OUT is a folder. About eight
# minutes on an H100; what comes first matters most, and an interrupted run keeps what is finished.
set -eu
build=$1 fa3=$2 out=$3
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$here"
sm80=flash_fwd_sm80+flash_bwd_sm80
sm80_f32=f32:flash_fwd_sm80+flash_bwd_twopass_sm80
sm90=flash_fwd_sm90+flash_bwd_sm90
m="measure --build $build --fa3 $fa3"
# shellcheck disable=SC2086
python3 -m bench.peers \
  $m --preset grid --peers cudnn,fa2,fa3 --kernel $sm90 --kernel $sm80 --compile-jobs 14 \
  -o "$out/grid.json" --then \
  $m --preset leaderboard --peers cudnn,fa2,fa3 --kernel $sm90 --kernel $sm80 \
  --protocol burst,sustained,board -o "$out/leaderboard.json" --then \
  $m --preset assignment --peers cudnn,fa2,memeff,torch-eager --rounds 2 \
  --kernel bf16:$sm90 --kernel bf16:$sm80 --kernel $sm80_f32 -o "$out/assignment.json" --then \
  $m --preset grid --seq 2048,8192 --dim 64,128 --peers cudnn,fa3,flex --kernel $sm90 \
  --protocol burst,sustained -o "$out/grid-flex.json" --then \
  $m --preset seed-eager --impl eager,fused,flash,baseline --peers memeff,torch-eager,torch-compile \
  --kernel $sm80_f32 --mem-limit 24 --rounds 2 -o "$out/seeds.json" --then \
  $m --preset baseline-scaling -o "$out/scaling.json" || echo "an output was refused; see the rows"

choose() { # OURS RESULT FILE...
  ours=$1 result=$2
  shift 2
  python3 -m bench.peers select --ours "$ours" -o "$out/$result.json" "$@"
}
for arch in sm80 sm90; do
  choose $arch grid-$arch "$out/grid.json" "$out/grid-flex.json"
  for preset in leaderboard assignment; do choose $arch $preset-$arch "$out/$preset.json"; done
done
for name in eager fused flash; do choose $name seed-$name-sm80 "$out/seeds.json"; done
cp "$out/scaling.json" "$out/baseline-scaling-sm80.json"
