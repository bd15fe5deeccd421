/// One query of each head of a group, as rows of one head.
#pragma once

#include "problem/problem.h"

namespace tilewise {

/// One query of a group's heads, which differ in nothing else, as rows of one head: K and V are
/// read once. Other problems as they are. Forward only.
Problem grouped(const Problem& problem);

}  // namespace tilewise
