#include "cli/shell/failure.h"

#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "cli/files/error.h"
#include "tilewise/error.h"

namespace tilewise::cli {
namespace {

int failed(ExitCode code, const char* message) {
  fmt::print(stderr, "tilewise: {}\n", message);
  return code;
}

}  // namespace

int report_failure() {
  try {
    throw;
  } catch (const Interrupted& error) {
    return failed(kInterrupted, error.what());
  } catch (const BadInput& error) {
    return failed(kBadInput, error.what());
  } catch (const files::FileError& error) {
    return failed(kBadInput, error.what());
  } catch (const InvalidArgument& error) {
    return failed(kBadInput, error.what());
  } catch (const DeviceError& error) {
    return failed(kNoDevice, error.what());
  } catch (const OutOfMemory& error) {
    return failed(kOutOfMemory, error.what());
  } catch (const std::bad_alloc&) {
    return failed(kOutOfMemory, "out of memory");
  } catch (const Unsupported& error) {
    return failed(kUnsupported, error.what());
  } catch (const NothingToCompare& error) {
    return failed(kUnsupported, error.what());
  } catch (const CompileError& error) {
    return failed(kUnsupported, error.what());
  } catch (const std::exception& error) {
    return failed(kBadInput, error.what());
  }
}

}  // namespace tilewise::cli
