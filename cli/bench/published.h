/// The tables and claims of the seed documents: cases/seeds_published.json.
#pragma once

#include "cli/shell/table.h"

namespace tilewise::cli {

/// The whole file. Throws BadInput when it is missing or is no JSON.
const Value& published();

}  // namespace tilewise::cli
