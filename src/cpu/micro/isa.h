/// The instruction sets of this CPU, and the rates that the planner may assume.
#pragma once

#include <cstdint>
#include <string_view>

#include "tilewise/plan.h"

namespace tilewise::cpu {

enum class Isa : std::uint8_t { scalar, avx2, avx512, avx512bf16, amx };

/// Best set that the CPU has and the operating system saves. TILEWISE_CPU_ISA (scalar, avx2,
/// avx512, avx512bf16) lowers it; amx_emulated raises a CPU that has avx512bf16 to amx.
Isa best_isa();
/// True when TILEWISE_CPU_ISA asks for emulated tiles: the AMX rows then run without AMX.
bool emulate_amx();
std::string_view isa_name(Isa isa);
/// The set of that name; scalar for an unknown one.
Isa isa_from_name(std::string_view name);

/// Size of the last-level cache in bytes; 32 MiB when the system does not say.
std::int64_t last_level_cache_bytes();

/// Name, threads, memory and rough rates of this CPU.
Hardware describe_cpu();

}  // namespace tilewise::cpu
