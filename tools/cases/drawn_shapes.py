"""A preset of shapes that nobody tuned: drawn from what people run.

    python3 tools/cases/drawn_shapes.py SEED [COUNT] [--serving]    prints COUNT lines [12]

Heads are those of models that people train. Lengths are any number. The batch is what a few tens
of thousands of rows leave. Kinds take turns: training (causal), vision (full), packed documents,
cross. With --serving: decoding side by side, over pages of ragged lengths, a few queries of each,
chunks of prompts over pages. `bench/peers/card.sh drawn served` measures them beside the peers; a
new SEED draws shapes that no kernel of ours has seen.
"""

import argparse
import math
import random
import sys
from collections.abc import Callable

# (heads, key heads): GPT-2, Llama, Qwen, Gemma, Mistral, Phi, gpt-oss, Falcon.
TRAINED: tuple[tuple[int, int], ...] = (
    *((12, 12), (16, 16), (20, 20), (24, 8), (28, 4), (32, 8), (32, 4)),
    *((32, 32), (40, 8), (40, 10), (48, 8), (64, 8), (14, 2), (71, 1)),
)
TRAINED_DIMS = (64, 64, 80, 96, 128, 128, 128, 128, 160, 192, 256)
# Llama, Qwen, Gemma, Mistral, gpt-oss, whole or a part of the heads on each of two or four devices.
SERVED: tuple[tuple[int, int], ...] = (
    *((32, 8), (16, 4), (64, 8), (16, 2), (28, 4), (40, 8), (16, 8)),
    *((8, 4), (32, 4), (48, 8)),
)
SERVED_DIMS = (64, 128, 128, 128, 128, 256)
PAGES = (16, 16, 32, 64, 128)
VISION_HEADS = (6, 8, 12, 16, 20)
VISION_DIMS = (64, 64, 72, 80, 96)
ROWS = 32768  # of all batch entries, about; fewer of more than 32 heads
END = "--dtype {dtype} --impl flash --protocol burst --repeat 12"


def log_uniform(draw: random.Random, least: int, most: int) -> int:
    """Any number, as often between 100 and 200 as between 1000 and 2000."""
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))


def dtype(draw: random.Random) -> str:
    return draw.choice(("bf16", "bf16", "bf16", "f16"))


def batch(draw: random.Random, rows: int, heads: int) -> int:
    most = ROWS * min(1.0, 32 / heads) / rows
    return max(1, min(64, round(most * draw.uniform(0.25, 1.0))))


def training(draw: random.Random) -> str:
    heads, kv_heads = draw.choice(TRAINED)
    seq = log_uniform(draw, 200, 16384)
    return (
        f"--batch {batch(draw, seq, heads)} --heads {heads} --kv-heads {kv_heads} --seq {seq}"
        f" --dim {draw.choice(TRAINED_DIMS)} --causal"
    )


def vision(draw: random.Random) -> str:
    seq = log_uniform(draw, 150, 4300)
    heads = draw.choice(VISION_HEADS)
    dim = draw.choice(VISION_DIMS)
    return f"--batch {batch(draw, seq, heads)} --heads {heads} --seq {seq} --dim {dim}"


def cross(draw: random.Random) -> str:
    queries, keys = log_uniform(draw, 200, 8192), log_uniform(draw, 60, 2000)
    heads = draw.choice(VISION_HEADS)
    sizes = f"--batch {batch(draw, 2 * queries, heads)} --heads {heads}"
    return f"{sizes} --seq-q {queries} --seq-k {keys} --dim {draw.choice((64, 128))}"


def packed(draw: random.Random) -> str:
    heads, kv_heads = draw.choice(TRAINED)
    typical = log_uniform(draw, 100, 3000)
    lengths: list[int] = []
    while sum(lengths) < ROWS // 2:
        lengths.append(max(16, min(ROWS // 2, round(typical * math.exp(draw.gauss(0.0, 0.8))))))
    rows = ",".join(str(length) for length in lengths)
    dim = draw.choice((64, 128))
    return f"--packed {rows} --heads {heads} --kv-heads {kv_heads} --dim {dim} --causal"


KINDS: tuple[Callable[[random.Random], str], ...] = (training, vision, packed, training, cross)


def cache(draw: random.Random) -> tuple[str, int]:
    """Heads and head dim of a served model, and the keys that a cache of 0.5 to 2 GiB holds."""
    heads, kv_heads = draw.choice(SERVED)
    dim = draw.choice(SERVED_DIMS)
    keys = round(draw.uniform(0.25, 1.0) * 2**31 / (4 * kv_heads * dim))
    return f"--heads {heads} --kv-heads {kv_heads} --dim {dim} --layout bshd", keys


def decoding(draw: random.Random) -> str:
    sizes, keys = cache(draw)
    seq = min(keys, log_uniform(draw, 700, 200000))
    return f"--batch {min(128, keys // seq)} {sizes} --seq-q 1 --seq-k {seq}"


def few_queries(draw: random.Random) -> str:
    sizes, keys = cache(draw)
    seq = min(keys, log_uniform(draw, 700, 50000))
    lengths = f"--seq-q {draw.randint(2, 8)} --seq-k {seq}"
    return f"--batch {min(64, keys // seq)} {sizes} {lengths} --causal"


def ragged_pages(draw: random.Random) -> str:
    sizes, keys = cache(draw)
    typical = log_uniform(draw, 500, 20000)
    lengths: list[int] = []
    while sum(lengths) < keys and len(lengths) < 128:
        lengths.append(max(1, min(100000, round(typical * math.exp(draw.gauss(0.0, 0.8))))))
    rows = ",".join(str(length) for length in lengths)
    return f"--lengths {rows} {sizes} --seq-q 1 --paged {draw.choice(PAGES)}"


def chunk(draw: random.Random) -> str:
    sizes, _ = cache(draw)
    queries, prefix = log_uniform(draw, 16, 2048), log_uniform(draw, 1000, 60000)
    lengths = f"--seq-q {queries} --seq-k {queries + prefix}"
    return f"--batch 1 {sizes} {lengths} --paged {draw.choice(PAGES)} --causal"


SERVING: tuple[Callable[[random.Random], str], ...] = (
    decoding,
    ragged_pages,
    few_queries,
    chunk,
    decoding,
)


def lines(seed: int, count: int, *, serving: bool = False) -> list[str]:
    draw = random.Random(seed)
    kinds = SERVING if serving else KINDS
    end = f"{END} --pass fwd" if serving else END
    return [f"{kinds[n % len(kinds)](draw)} {end.format(dtype=dtype(draw))}" for n in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=12)
    parser.add_argument("--serving", action="store_true", help="shapes of a server")
    args = parser.parse_args()
    words = f"{args.seed} {args.count}{' --serving' if args.serving else ''}"
    print(f"# Drawn by tools/cases/drawn_shapes.py {words}: nobody tuned for these.")
    print("\n".join(lines(args.seed, args.count, serving=args.serving)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
