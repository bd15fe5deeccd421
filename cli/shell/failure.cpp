#include "cli/shell/failure.h"

#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "cli/files/error.h"
#include "tilewise/error.h"

namespace tilewise::cli {
namespace {

int failed(ExitCode code, const char* message) {
  complain(message);
  return code;
}

}  // namespace

void complain(std::string_view message) {
  const std::string line = fmt::format("tilewise: {}\n", message);
  // NOTE: fmt::print throws where stderr is full or closed. The exit code still tells.
  std::fputs(line.c_str(), stderr);
}

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
