#include "cuda/jit/unit.h"

namespace tilewise::cuda {

std::string KernelUnit::name() const { return entry == "kernel" ? stem : stem + "_" + entry; }

std::string KernelUnit::source() const {
  return prelude +                                                              //
         "#include \"cuda/kernels/" + file + ".cuh\"\n" +                       //
         "using namespace tilewise::" + stem + ";\n" +                          //
         "extern \"C\" __global__ void __launch_bounds__(" +                    //
         std::to_string(threads) + ", " + std::to_string(min_blocks) + ")\n" +  //
         name() + "(const __grid_constant__ " + args + " args) {\n  " +         //
         entry + "<Config{" + config + "}>(args);\n}\n";
}

}  // namespace tilewise::cuda
