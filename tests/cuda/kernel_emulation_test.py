"""The flash kernels on the CPU: compiled by the host's compiler, one fiber a thread.

The wrappers of src/cuda/tile hold one instruction each; here each gets a body that does on the CPU
what its instruction does. Everything above them is compiled as it is. Needs no GPU and no CUDA.

When asynchronous operations take effect and which warps stall is drawn from a seed: 1 here, and
others by --seeds (`kernel_emulation_test.py bwd_sm90 --seeds 2 50`). --drawn N: the seed also draws
N shapes for each of some configs, in programs that have draws.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_cache import cached

SKIPPED = 77
SOURCE = Path(__file__).resolve().parent.parent.parent
EMULATOR = SOURCE / "emulator"

LOAD_MATRIX = """
  emulator::note_read(emulator::access(shared, 16));
  const emulator::Slot* slots = emulator::meet({{shared}});
  u32 addresses[32];
  for (int i = 0; i < 32; ++i) addresses[i] = slots[i].words[0];
  const int lane = emulator::current->thread % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    r[matrix] = 0;
    for (int e = 0; e < 2; ++e) {
      const int along = lane / 4, across = 2 * (lane % 4) + e;
      unsigned short x;
      std::memcpy(&x, emulator::shared_base + addresses[matrix * 8 + ROW] + 2 * COLUMN, 2);
      r[matrix] |= static_cast<u32>(x) << (16 * e);
    }
  }
"""

STORE_MATRIX = """
  emulator::note_write(emulator::access(shared, 16));
  const emulator::Slot* slots = emulator::meet({{shared}});
  const int lane = emulator::current->thread % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const u32 row = slots[matrix * 8 + lane / 4].words[0];
    std::memcpy(emulator::shared_base + row + 4 * (lane % 4), &r[matrix], 4);
  }
"""

MMA = """
  const int lane = emulator::current->thread % 32;
  const emulator::Slot* w = emulator::meet({{a[0], a[1], a[2], a[3], b0, b1}});
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), col = 2 * (lane % 4) + e % 2;
    double sum = 0.0;
    for (int k = 0; k < 16; ++k) {
      const u32 x = w[row % 8 * 4 + k % 8 / 2].words[row / 8 + 2 * (k / 8)];
      const u32 y = w[col * 4 + k % 8 / 2].words[4 + k / 8];
      sum += static_cast<double>(widen<kElement>(x >> (16 * (k % 2)) & 0xffffU)) *
             static_cast<double>(widen<kElement>(y >> (16 * (k % 2)) & 0xffffU));
    }
    c[e] += static_cast<float>(sum);
  }
"""

MMA_TF32 = """
  const int lane = emulator::current->thread % 32;
  const emulator::Slot* w = emulator::meet({{a[0], a[1], a[2], a[3], b0, b1}});
  const auto kept = [](u32 x) { return static_cast<double>(emulator::number(x & 0xffffe000U)); };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), col = 2 * (lane % 4) + e % 2;
    double sum = c[e];
    for (int k = 0; k < 8; ++k) {
      sum += kept(w[row % 8 * 4 + k % 4].words[row / 8 + 2 * (k / 4)]) *
             kept(w[col * 4 + k % 4].words[4 + k / 4]);
    }
    c[e] = static_cast<float>(sum);
  }
"""

PACK = """
  const auto one = [](float x) -> u32 {
    if constexpr (kElement == Element::bf16) {
      const u32 u = emulator::bits(x);
      return x != x ? 0x7fffU : (u + 0x7fffU + (u >> 16 & 1U)) >> 16;
    } else {
      const _Float16 half = static_cast<_Float16>(x);
      unsigned short u;
      std::memcpy(&u, &half, 2);
      return u;
    }
  };
  return one(lo) | one(hi) << 16;
"""

WIDEN = """
  if constexpr (kElement == Element::bf16) return emulator::number(bits << 16);
  const unsigned short u = static_cast<unsigned short>(bits);
  _Float16 half;
  std::memcpy(&half, &u, 2);
  return static_cast<float>(half);
"""


MIN_2 = """
  const auto one = [](u32 x, u32 y) {
    const float a = widen<kElement>(x & 0xffffU), b = widen<kElement>(y & 0xffffU);
    return a != a ? x & 0xffffU : b != b || b < a ? y & 0xffffU : x & 0xffffU;
  };
  return one(a, b) | one(a >> 16, b >> 16) << 16;
"""


def copy(size: int) -> str:
    """An asynchronous copy of 4 or 16 bytes."""
    return (
        f"if (reinterpret_cast<unsigned long>(global) % {size} != 0) "
        'emulator::on_fault("misaligned source of a copy"); '
        f"emulator::start_copy(emulator::current->copies, {{shared, global, bytes, {size}}}, "
        f"emulator::access(shared, {size}), emulator::shared_base);"
    )


def read(size: int) -> str:
    return f"emulator::note_read(emulator::access(shared, {size})); "


def write(size: int) -> str:
    return f"emulator::note_write(emulator::access(shared, {size})); "


WAIT = """
  emulator::wait_copies(emulator::current->copies, kPending, emulator::current->barriers + 1,
                        emulator::current->thread / 32, emulator::shared_base);
"""


# File of tile/ -> (start of a wrapper's declarator, its body here).
BODIES = {
    "copy.cuh": [
        ("void prefetch_line(", ""),
        (
            "u32 shared_address(",
            "return static_cast<u32>("
            "static_cast<const unsigned char*>(p) - emulator::shared_name);",
        ),
        ("void copy_async_16(", copy(16)),
        ("void copy_async_commit(", "emulator::commit_copies(emulator::current->copies);"),
        ("void copy_async_wait(", WAIT),
        (
            "void load_matrix_x4(",
            LOAD_MATRIX.replace("ROW", "along").replace("COLUMN", "across"),
        ),
        (
            "void load_matrix_trans_x4(",
            LOAD_MATRIX.replace("ROW", "across").replace("COLUMN", "along"),
        ),
        (
            "void store_shared_4(",
            write(4) + "std::memcpy(emulator::shared_base + shared, &value, 4);",
        ),
        (
            "Bytes16 load_shared_16(",
            read(16) + "Bytes16 r; std::memcpy(&r, emulator::shared_base + shared, 16); return r;",
        ),
        (
            "u32 load_shared_2(",
            read(2) + "u32 r = 0; std::memcpy(&r, emulator::shared_base + shared, 2); return r;",
        ),
        (
            "u32 load_shared_4(",
            read(4) + "u32 r; std::memcpy(&r, emulator::shared_base + shared, 4); return r;",
        ),
        (
            "float load_shared_f32(",
            read(4) + "float r; std::memcpy(&r, emulator::shared_base + shared, 4); return r;",
        ),
        (
            "Floats2 load_shared_8(",
            read(8) + "Floats2 r; std::memcpy(&r, emulator::shared_base + shared, 8); return r;",
        ),
        (
            "void store_shared_16(",
            write(16) + "const float v[4] = {x, y, z, w}; "
            "std::memcpy(emulator::shared_base + shared, v, 16);",
        ),
        ("u32 load_global_early(", "return *global;"),
        ("Bytes16 load_global_16(", "Bytes16 r; std::memcpy(&r, global, 16); return r;"),
        ("void store_global_16(", "std::memcpy(global, &v, 16);"),
        ("void store_global_8(", "global[0] = x; global[1] = y;"),
        ("void add_global(", "*global += v;"),
    ],
    "math.cuh": [
        ("int opaque(", "return x;"),
        ("u64 opaque(", "return x;"),
        ("u32 after(", "return x;"),
        ("u64 after(", "return x;"),
        ("float exp2_approx(", "return std::exp2(x);"),
        ("float log2_approx(", "return std::log2(x);"),
        ("float reciprocal(", "return 1.0F / x;"),
        (
            "u32 max_halves(",
            "return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xffffU, b & 0xffffU);",
        ),
        ("float min_nan(", "return a != a || b != b ? a + b : std::fmin(a, b);"),
        ("float max_nan(", "return a != a || b != b ? a + b : std::fmax(a, b);"),
        ("u32 pack(", PACK),
        ("u32 min_nan_2(", MIN_2),
        ("float widen(", WIDEN),
        (
            "u32 bit_mask(",
            "return static_cast<u32>(start > 31 ? 0 : "
            "((1ULL << (width > 32 ? 32 : width)) - 1) << start);",
        ),
    ],
    "mma.cuh": [("void mma(", MMA)],
    "mma_tf32.cuh": [("void mma_tf32(", MMA_TF32)],
    "softcap.cuh": [("float reciprocal_approx(", "return 1.0F / x;")],
    "hopper/mbarrier.cuh": [
        (
            "void mbarrier_init(",
            "emulator::current->block->mbarriers[barrier] = {arrivals, arrivals};",
        ),
        ("void mbarrier_fence_init(", ""),
        ("void mbarrier_arrive(", "emulator::current->block->mbarriers[barrier].arrive();"),
        ("void mbarrier_expect(", "emulator::current->block->mbarriers[barrier].expect(bytes);"),
        ("void mbarrier_arrive_copies(", "emulator::arrive_copies(barrier);"),
        ("bool mbarrier_test(", "return emulator::try_wait(barrier, parity);"),
        ("bool mbarrier_try_wait(", "return emulator::try_wait(barrier, parity);"),
    ],
    "hopper/tma.cuh": [
        ("void tma_prefetch_map(", ""),
        ("void tma_load(", "emulator::load_box(map, shared, barrier, {d, h, s, b, 0}, 4);"),
        (
            "void tma_load_5d(",
            "emulator::load_box(map, shared, barrier, {d, c[0], c[1], c[2], c[3]}, 5);",
        ),
        ("void tma_store(", "emulator::store_box(map, shared, {d, h, s, b, 0}, 4);"),
        (
            "void tma_store_5d(",
            "emulator::store_box(map, shared, {d, c[0], c[1], c[2], c[3]}, 5);",
        ),
        ("void bulk_load(", "emulator::load_bytes(global, shared, bytes, barrier);"),
        ("void bulk_add(", "emulator::add_floats(global, shared, bytes);"),
        ("void bulk_commit(", "emulator::commit_departures();"),
        ("void bulk_wait_read(", "emulator::wait_reads(kPending);"),
        ("void bulk_wait(", "emulator::wait_writes();"),
        ("void fence_async_shared(", ""),
        ("void fence_async(", ""),
        ("void store_matrix_x4(", STORE_MATRIX),
    ],
    "hopper/signal.cuh": [
        ("void signal_add(", "++emulator::events; *counter += value;"),
        ("void fence_device(", ""),
        ("u32 signal_count(", "++emulator::events; return (*counter)++;"),
        ("u32 signal_read(", "emulator::yield(); return *counter;"),
    ],
    "hopper/warpgroup.cuh": [
        ("void take_registers(", "emulator::current->block->registers.change(kRegisters);"),
        ("void give_registers(", "emulator::current->block->registers.change(kRegisters);"),
        ("void named_barrier_sync(", "emulator::current->block->named_barriers[id].sync(threads);"),
        (
            "void named_barrier_arrive(",
            "emulator::current->block->named_barriers[id].arrive(threads);",
        ),
    ],
    "hopper/wgmma.cuh": [
        ("void wgmma_fence(", ""),
        ("void wgmma_commit(", "emulator::commit_products();"),
        ("void wgmma_wait(", "emulator::wait_products(kPending);"),
        ("void pin(float", ""),
        ("void pin(u32", ""),
    ],
}

# Programs in emulator/, and whether they need the library's objects for its host side. `faults`
# are kernels that lack a wait, which the emulator must find. Programs that need the objects may
# include expression_texts.h, what expression_texts.cxx prints. A program takes the path of
# emulator/cases/PROGRAM.txt where there is one.
PROGRAMS = {
    "faults": False,
    "append": False,
    "merge_rows": False,
    "flash_sm80": False,
    "flash_sm80_wide": True,
    "flash_sm80_ragged": True,
    "flash_sm80_pages": False,
    "flash_sm80_expressions": True,
    "exact_sums": False,
    "row_statistics": False,
    "mask_maps": True,
    "documents": False,
    "flash_sm80_lists": True,
    "fwd_sm90": True,
    "fwd_sm90_lists": True,
    "fwd_sm90_pages": True,
    "fwd_sm90_expressions": True,
    "fwd_sm90_options": True,
    "bwd_sm90": True,
    "bwd_sm90_expressions": True,
    "bwd_sm90_options": True,
    "bwd_sm90_lists": True,
    "bwd_dq_sm90": True,
    "bwd_short_sm90": True,
    "decode_sm90": True,
    "mla_sm90": True,
    "select": True,
    "layer_steps": True,
}


def replace_body(text: str, declarator: str, body: str) -> str:
    """The text with another body for the function that `declarator` starts."""
    begin = text.index("{", text.index(declarator))
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[:begin] + "{" + body + "}" + text[at + 1 :]
    raise ValueError(f"no end of {declarator}")


def make_sources(source: Path, folder: Path) -> None:
    """Copies tile/ and kernels/ and gives the wrappers their bodies."""
    for room in ("tile", "kernels"):
        for pattern in ("*.cuh", "*args.h", "types.h", "tensor_map.h"):
            for file in (source / "src/cuda" / room).rglob(pattern):
                copy = folder / file.relative_to(source / "src")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
    for name, bodies in BODIES.items():
        path = folder / "cuda/tile" / name
        text = path.read_text()
        for declarator, body in bodies:
            text = replace_body(text, declarator, body)
        newer = r"#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ >= 900\n.*?#(else|endif)"
        if "asm" in re.sub(newer, "", text, flags=re.DOTALL):
            raise ValueError(f"{name}: an instruction has no body here")
        path.write_text(text)


def library_objects() -> list[str]:
    """Object files of the library and the harness; none where the build folder has none.

    A build folder keeps the objects of sources that have moved, so its file list is not asked.
    """
    build = Path(os.environ.get("TILEWISE_BUILD_DIR", ""))
    commands = build / "compile_commands.json"
    entries = json.loads(commands.read_text()) if commands.exists() else []
    outputs = [re.search(r" -o (\S+\.o)", entry["command"]) for entry in entries]
    paths = [build / output[1] for output in outputs if output is not None]
    rooms = {"tilewise_core.dir", "tilewise_harness.dir"}
    return [str(path) for path in paths if rooms & set(path.parts) and path.exists()]


def compile_program(program: str, folder: Path, compiler: str, objects: list[str]) -> Path:
    """Compiles one of the files of emulator/, with these objects."""
    binary = folder / program
    # Fibers leave and enter frames by longjmp, which a checked longjmp refuses.
    command = [compiler, "-std=c++20", "-O1", "-w", "-U_FORTIFY_SOURCE", "-I", str(folder)]
    command += ["-I", str(EMULATOR), "-include", str(EMULATOR / "emulator.h")]
    command += [f"-I{SOURCE / room}" for room in ("src", "include", ".")]
    command += ["-x", "c++", str(EMULATOR / f"{program}.cxx"), "-o", str(binary)]
    if objects:
        command += ["-x", "none", *objects, "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    return binary


def build(program: str, folder: Path, compiler: str) -> Path | None:
    """Compiles one program; None when it needs objects that are not there."""
    objects = library_objects() if PROGRAMS[program] else []
    if PROGRAMS[program] and not objects:
        print(f"{program}: no object files of the library")
        return None
    texts = folder / "expression_texts.h"
    if objects and not texts.exists():
        printer = compile_program("expression_texts", folder, compiler, objects)
        printed = subprocess.run([str(printer)], check=True, capture_output=True, text=True)
        texts.write_text(printed.stdout)
    return compile_program(program, folder, compiler, objects)


def run(program: str, folder: Path, compiler: str, seeds: range, drawn: int) -> int:
    """Compiles and runs one program; SKIPPED when it could not be built here."""
    binary = build(program, folder, compiler)
    if binary is None:
        return SKIPPED
    cases = EMULATOR / "cases" / f"{program}.txt"
    command = [str(binary), *([str(cases)] if cases.exists() else [])]
    for seed in seeds:
        print(f"{program}, seed {seed}", flush=True)
        environment = os.environ | {
            "TILEWISE_EMULATION_SEED": str(seed),
            "TILEWISE_EMULATION_DRAWN": str(drawn),
        }
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            return 1
    return 0


def main() -> int:
    """Runs the programs named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--seeds", nargs=2, type=int, default=(1, 1), metavar=("FIRST", "LAST"))
    parser.add_argument("--drawn", type=int, default=0, metavar="N")
    options = parser.parse_args()
    if unknown := set(options.programs) - PROGRAMS.keys():
        parser.error(f"no program {', '.join(unknown)}")
    seeds = range(options.seeds[0], options.seeds[1] + 1)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        print("no C++ compiler")
        return SKIPPED
    if cached("TILEWISE_SANITIZE"):
        print("the emulated kernels are built without this build's sanitizer")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sources(SOURCE, folder)
        results = [
            run(program, folder, compiler, seeds, options.drawn)
            for program in options.programs or PROGRAMS
        ]
    return next((result for result in results if result not in (0, SKIPPED)), max(results))


if __name__ == "__main__":
    sys.exit(main())
