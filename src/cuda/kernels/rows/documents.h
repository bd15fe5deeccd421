/// documents on the host. See rows/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/documents_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Whether the mask function shows the keys of a row's own document. Sequences can then be read as
/// packed documents. No other sequence may decide that.
bool compares_documents(const Problem& problem);
/// The problem as a kernel of packed sequences takes it, but that tensors keep their entries. The
/// lengths are for it to find.
Problem by_documents(const Problem& problem);

/// Finds the row blocks of the documents of such a problem. The problem outlives it.
class DocumentBlocks {
 public:
  DocumentBlocks(const Problem& problem, int rows);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory().
  void take(WorkspaceCutter& workspace);
  /// What the kernel reads, after take().
  const documents::Args& args() const { return args_; }
  /// Starts it. The next kernel may start before it ends and waits by wait_for_previous().
  void make(void* stream) const;

 private:
  const Problem& problem_;
  documents::Config config_;
  documents::Args args_;
};

}  // namespace tilewise::cuda
