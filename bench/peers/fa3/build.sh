#!/bin/sh
# Builds libfa3.so: FlashAttention-3's own kernels behind a C function each, for bench/peers.
#
#   bench/peers/fa3/build.sh CHECKOUT OUT [DIM...]
#
# CHECKOUT is a checkout of the flash-attention repository with its csrc/cutlass submodule, OUT the
# folder for objects and the library. Only what the comparison runs is compiled: bf16, sm_90a, full and
# causal, forward windows, dims 64 128 256 by default. One file at a time: each takes minutes and up to
# 5 GB.
set -eu
# A checkout without .git: FA3_COMMIT names it.
checkout=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
dims=${*:-64 128 256}
here=$(cd "$(dirname "$0")" && pwd)
nvcc=${NVCC:-/usr/local/cuda/bin/nvcc}

# Their release flags, without the features that no row measures. Clusters stay: their forward uses them.
flags="-O3 -std=c++17 --use_fast_math --expt-relaxed-constexpr
  --expt-extended-lambda -w -Xcompiler -fPIC -gencode arch=compute_90a,code=sm_90a
  -DNDEBUG -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90
  -DCUTLASS_DEBUG_TRACE_LEVEL=0 -I $checkout/hopper -I $checkout/csrc/cutlass/include"
for feature in SOFTCAP PAGEDKV SPLIT APPENDKV PACKGQA VARLEN FP16 FP8 SM8x; do
  flags="$flags -DFLASHATTENTION_DISABLE_$feature"
done

objects=
for dim in $dims; do
  for pass in fwd bwd; do
    object="$out/${pass}_$dim.o"
    objects="$objects $object"
    [ -e "$object" ] && continue
    echo "fa3: $pass, dim $dim"
    windows=
    [ "$pass" = bwd ] && windows=-DFLASHATTENTION_DISABLE_LOCAL
    # shellcheck disable=SC2086
    nice "$nvcc" $flags $windows -c -o "$object.part" \
      "$checkout/hopper/instantiations/flash_${pass}_hdim${dim}_bf16_sm90.cu"
    mv "$object.part" "$object"
  done
done
has=
for dim in $dims; do has="$has -DFA3_HAS_$dim"; done
# shellcheck disable=SC2086
"$nvcc" $flags $has -shared -cudart static -o "$out/libfa3.so" "$here/shim.cpp" $objects
strip "$out/libfa3.so"
# What was built, for the results' environment.
(git -C "$checkout" rev-parse HEAD 2>/dev/null || echo "${FA3_COMMIT:-unknown}") > "$out/libfa3.commit"
