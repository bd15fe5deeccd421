/// Choice: from a Problem and a machine to a Plan. Pure: the same arguments give the same plan.
#pragma once

#include <span>

#include "plan/kernel_row.h"
#include "plan/tuning.h"

namespace tilewise {

/// Considers `rows` in order. Left to itself: the supporting `flash` rows of the device, least
/// predicted time, ties to the earlier row. Throws Unsupported with every refusal, InvalidArgument
/// for a forced name that does not exist.
/// A measured winner of the problem in `tuned` comes before all predictions, unless `named` names
/// another kernel.
Plan choose(const Problem& problem, const Hardware& machine, const Choice& named,
            std::span<const KernelRow> rows, const Tuning* tuned = nullptr);

/// Every kernel and form that could be chosen for the problem, least predicted time first, as
/// plans. Throws as choose().
std::vector<Plan> all_forms(const Problem& problem, const Hardware& machine, const Choice& named,
                            std::span<const KernelRow> rows);

/// "KERNEL: REASON" for each refusal, or only for that of `kernel` when one is given; kernels that
/// share a reason share a line.
std::vector<std::string> refusal_lines(const std::vector<Refusal>& refusals,
                                       const std::string& kernel = {});

/// The row of that name for the pass. Throws InvalidArgument.
const KernelRow& find_row(std::span<const KernelRow> rows, const std::string& name, Pass pass);

/// `choice`, or what TILEWISE_FORCE_KERNEL names when both of its fields are empty.
Choice with_environment(const Choice& choice, Pass pass, std::span<const KernelRow> rows);

}  // namespace tilewise
