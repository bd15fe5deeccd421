// libcublas.so.13 but for its products: handles that hold nothing.
#pragma once

namespace {

int object;

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return *handle = &object, 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, unsigned long) { return 0; }
int cublasSetMathMode(void*, int) { return 0; }
const char* cublasGetStatusString(int) { return "no library"; }

}  // extern "C"
