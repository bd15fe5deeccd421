/// tilewise kernels: the compiled device kernels of the pack and of the cache.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <set>

#include "cli/machine/kernels_diff.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/failure.h"
#include "cli/shell/interrupt.h"
#include "cli/shell/output.h"
#include "cli/shell/progress.h"
#include "cuda/driver/device.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/pack.h"
#include "tilewise/error.h"

namespace tilewise::cli {
namespace {

struct KernelsFlags {
  std::string format, output, pack, archs, old_pack, new_pack;
};

void add_entry(Table& table, const char* place, const cuda::KernelEntry& entry) {
  const cuda::CompileReport& r = entry.report;
  table.add({place, entry.name, cuda::arch_name(entry.arch), r.registers,
             r.spill_store_bytes + r.spill_load_bytes, r.static_shared_bytes + entry.shared_bytes,
             entry.cubin_bytes, r.seconds, entry.compiler, entry.config});
}

int list(const KernelsFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  const cuda::Pack& pack = cuda::installed_pack();
  const cuda::DiskCache cache(cuda::default_cache_folder());
  Table table({{"place"},
               {"kernel"},
               {"arch"},
               {"registers"},
               {"spilled_bytes"},
               {"shared_bytes"},
               {"cubin_bytes"},
               {"compile_s", 2},
               {"nvrtc"},
               {"config"}});
  for (const cuda::KernelEntry& entry : pack.list()) add_entry(table, "pack", entry);
  for (const cuda::KernelEntry& entry : cache.list()) add_entry(table, "cache", entry);
  std::string text = table.text(format);
  if (format == Format::markdown) {
    std::string why_not;
    const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
    text += fmt::format("\npack: {}\ncache: {}\nNVRTC: {}\n",
                        pack.path().empty() ? "not installed beside the library" : pack.path(),
                        cache.folder().empty() ? "disabled: no home folder" : cache.folder(),
                        nvrtc != nullptr ? nvrtc->version : why_not);
  }
  write_output(flags.output, text);
  return kDone;
}

/// Architectures to build for: those asked for, else those of the devices at hand.
std::vector<int> wanted_archs(const KernelsFlags& flags) {
  std::set<int> archs;
  if (!flags.archs.empty()) {
    for (const std::int64_t arch : parse_axis("--arch", flags.archs, 80)) {
      archs.insert(static_cast<int>(arch));
    }
  } else {
    for (int device = 0; device < cuda::device_count(); ++device) {
      archs.insert(cuda::device_arch(device));
    }
    if (archs.empty()) {
      throw BadInput("expected --arch, because this machine has no GPU to build for: " +
                     cuda::missing_driver_reason());
    }
  }
  return {archs.begin(), archs.end()};
}

int build(const KernelsFlags& flags) {
  check_output(flags.pack);
  const std::vector<int> archs = wanted_archs(flags);
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) throw CompileError(why_not);
  const cuda::DiskCache cache(cuda::default_cache_folder());
  if (flags.pack.empty() && !cache.is_writable()) {
    fmt::print(stderr, "tilewise: {}: kernels are compiled, but not stored\n",
               cache.folder().empty() ? "TILEWISE_CACHE_DIR and HOME are not set"
                                      : cache.folder() + " cannot be written");
  }
  std::size_t all = 0, compiled = 0;
  for (const int arch : archs) all += cuda::pack_units(arch).size();
  catch_interrupts();
  Progress progress(all);
  const auto count = [&](int, int, const cuda::KernelEntry& entry, bool cached) {
    throw_if_interrupted();
    progress.advance();
    progress.show(fmt::format("{} {}", entry.name, cuda::arch_name(entry.arch)));
    if (!cached) ++compiled;
  };
  if (flags.pack.empty()) {
    cuda::fill_cache(archs, cache, count);
  } else {
    cuda::build_pack(flags.pack, archs, cache, count);
  }
  progress.clear();
  fmt::print("{} kernels in {}, {} compiled now\n", all,
             flags.pack.empty() ? cache.folder() : flags.pack, compiled);
  return kDone;
}

int clear() {
  const cuda::DiskCache cache(cuda::default_cache_folder());
  fmt::print("{} kernels removed from {}\n", cache.clear(), cache.folder());
  return kDone;
}

}  // namespace

void add_kernels(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<KernelsFlags>();
  CLI::App* app =
      program.add_subcommand("kernels", "List, build, compare or clear compiled GPU kernels");
  app->require_subcommand(1);
  CLI::App* list_app = app->add_subcommand("list", "List the kernels in the pack and in the cache");
  add_output_flags(*list_app, flags->format, flags->output);
  list_app->callback([flags, &exit_code] { exit_code = list(*flags); });
  CLI::App* build_app = app->add_subcommand(
      "build", "Compile the common kernels into the cache or a pack file; needs no GPU");
  build_app
      ->add_option("--arch", flags->archs,
                   "architectures, for example 80,90 [those of this machine's GPUs]")
      ->option_text("LIST");
  build_app->add_option("--pack", flags->pack, "pack file to write, instead of the cache")
      ->option_text("FILE");
  build_app->callback([flags, &exit_code] { exit_code = build(*flags); });
  CLI::App* diff_app = app->add_subcommand(
      "diff", "Compare the machine code of two pack files; exit code 1 if it differs");
  diff_app->add_option("OLD", flags->old_pack, "pack file")->required()->option_text("FILE");
  diff_app->add_option("NEW", flags->new_pack, "pack file to compare with OLD")
      ->required()
      ->option_text("FILE");
  diff_app->callback(
      [flags, &exit_code] { exit_code = diff_packs(flags->old_pack, flags->new_pack); });
  CLI::App* clear_app = app->add_subcommand("clear", "Remove every kernel from the cache");
  clear_app->callback([&exit_code] { exit_code = clear(); });
  app->footer(  // after the commands, which would inherit it
      "Examples:\n"
      "  tilewise kernels list\n"
      "  tilewise kernels build --arch 90 --pack tilewise.pack\n"
      "  tilewise kernels diff old.pack new.pack");
}

}  // namespace tilewise::cli
