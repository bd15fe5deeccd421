/// append() on the CPU.
#pragma once

#include "problem/append.h"

namespace tilewise::cpu {

/// Every entry has room: make_append() has seen to it.
void append(const Append& call, Executor& executor);

}  // namespace tilewise::cpu
