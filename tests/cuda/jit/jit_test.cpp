// Units, compile reports, entries, the disk cache and the pack. Needs no GPU; what compiles needs
// NVRTC.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "comma_locale.h"
#include "cuda/jit/census.h"
#include "cuda/jit/hash.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/pack.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

namespace fs = std::filesystem;

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "tilewise-test-XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const std::string& name = "") const { return path_ + "/" + name; }

 private:
  std::string path_;
};

KernelUnit copy_unit(int bytes = 4) {
  return {.stem = "copy_rows",
          .file = "rows/copy",
          .config = ".element_bytes = " + std::to_string(bytes),
          .threads = 256};
}

KernelEntry some_entry(const std::string& cubin) {
  KernelEntry entry;
  entry.key = Fingerprint().add("a key").hex();
  entry.name = "copy_rows";
  entry.config = ".element_bytes = 4";
  entry.compiler = "13.0";
  entry.arch = 90;
  entry.threads = 256;
  entry.report.registers = 26;
  entry.report.notes = {"C7510 something"};
  entry.cubin = cubin;
  entry.cubin_bytes = static_cast<std::int64_t>(cubin.size());
  return entry;
}

std::string cubin_with_newlines() {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i % 256);
  return bytes + "\n\ntilewise-kernel 1\n";
}

fs::path only_file(const std::string& folder) {
  fs::path found;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.is_regular_file()) found = file.path();
  }
  return found;
}

TEST(KernelUnit, SourceInstantiatesTheEntry) {
  KernelUnit unit = copy_unit();
  unit.min_blocks = 2;
  EXPECT_EQ(unit.name(), "copy_rows");
  const std::string source = unit.source();
  EXPECT_NE(source.find("#include \"cuda/kernels/rows/copy.cuh\""), std::string::npos);
  EXPECT_NE(source.find("__launch_bounds__(256, 2)"), std::string::npos);
  EXPECT_NE(source.find("kernel<Config{.element_bytes = 4}>(args);"), std::string::npos);
  unit.entry = "other";
  EXPECT_EQ(unit.name(), "copy_rows_other");
}

TEST(Fingerprint, KnownValueAndPieces) {
  // Published FNV-1a 128 of the empty string: the offset basis.
  EXPECT_EQ(Fingerprint().hex(), "6c62272e07bb014262b821756295c58d");
  EXPECT_NE(Fingerprint().add("ab").add("c").hex(), Fingerprint().add("a").add("bc").hex());
}

TEST(UnitKey, DependsOnConfigAndArchitecture) {
  EXPECT_EQ(unit_key(copy_unit(), 90), unit_key(copy_unit(), 90));
  EXPECT_NE(unit_key(copy_unit(), 90), unit_key(copy_unit(), 80));
  EXPECT_NE(unit_key(copy_unit(2), 90), unit_key(copy_unit(4), 90));
}

TEST(ParseLog, ReadsResourcesAndNotes) {
  const CompileReport report = parse_log(
      "ptxas info    : (C7519) Potential Performance Loss: wgmma moved\n"
      "ptxas info    : Function properties for f\n"
      "ptxas         .     48 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem, 900 bytes cmem[0]\n");
  EXPECT_EQ(report.registers, 168);
  EXPECT_EQ(report.stack_bytes, 48);
  EXPECT_EQ(report.spill_store_bytes, 16);
  EXPECT_EQ(report.spill_load_bytes, 24);
  EXPECT_EQ(report.static_shared_bytes, 1024);
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_EQ(report.notes[0].substr(0, 5), "C7519");
}

TEST(Census, FindsEachFault) {
  const PackUnit plain{.unit = copy_unit(), .row = "r"};
  KernelEntry entry = some_entry("x");
  entry.report.notes.clear();
  EXPECT_TRUE(census_faults(plain, entry, 90).empty());

  KernelEntry bad = entry;
  bad.report.spill_load_bytes = 8;
  EXPECT_EQ(census_faults(plain, bad, 90).size(), 1U);
  PackUnit allows = plain;
  allows.allowed_spill_bytes = 8;
  EXPECT_TRUE(census_faults(allows, bad, 90).empty());
  allows.allowed_spill_bytes = 200;
  EXPECT_EQ(census_faults(allows, bad, 90).size(), 1U);

  bad = entry;
  bad.report.stack_bytes = 80;
  EXPECT_EQ(census_faults(plain, bad, 90).size(), 1U);

  bad = entry;
  bad.report.notes = {"C7510 x", "C7519 x", "C7520 x", "C7508 x", "C7515 x", "C7516 x"};
  EXPECT_EQ(census_faults(plain, bad, 90).size(), 4U);

  bad = entry;
  bad.shared_bytes = 100 * 1024;
  EXPECT_TRUE(census_faults(plain, bad, 90).empty());
  EXPECT_EQ(census_faults(plain, bad, 86).size(), 1U);

  PackUnit tensor = plain;
  tensor.instruction = "mma.sync";
  EXPECT_EQ(census_faults(tensor, entry, 90).size(), 1U);
  tensor.instruction = "wgmma.mma_async";
  EXPECT_EQ(census_faults(tensor, entry, 90).size(), 1U);
  bad = entry;
  bad.report.wgmma_count = 4;
  EXPECT_TRUE(census_faults(tensor, bad, 90).empty());

  bad = entry;
  bad.cubin_bytes = kMaxCubinBytes + 1;
  EXPECT_EQ(census_faults(plain, bad, 90).size(), 1U);
  bad = entry;
  bad.report.seconds = 1000.0;  // a busy machine is no fault of the kernel's
  EXPECT_TRUE(census_faults(plain, bad, 90).empty());
}

TEST(KernelEntry, IsTheSameInEveryLocale) {
  KernelEntry entry = some_entry("machine code");
  entry.shared_bytes = 232448;
  const CommaLocale comma;
  std::stringstream file;
  write_entry(file, entry);
  const auto read = read_entry(file);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->shared_bytes, 232448);
}

TEST(KernelEntry, RoundTrip) {
  const KernelEntry entry = some_entry(cubin_with_newlines());
  std::stringstream file;
  write_entry(file, entry);
  write_entry(file, entry);
  const auto described = read_description(file);
  ASSERT_TRUE(described);
  EXPECT_TRUE(described->cubin.empty());
  const auto read = read_entry(file);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->cubin, entry.cubin);
  EXPECT_EQ(read->key, entry.key);
  EXPECT_EQ(read->config, entry.config);
  EXPECT_EQ(read->arch, 90);
  EXPECT_EQ(read->report.registers, 26);
  EXPECT_EQ(read->report.notes, entry.report.notes);
}

TEST(DiskCache, KeepsAndClears) {
  const Folder folder;
  const DiskCache cache(folder.path("a/b"));
  const KernelEntry entry = some_entry("machine code");
  EXPECT_FALSE(cache.read(entry.key, "13.0"));
  ASSERT_TRUE(cache.write(entry));
  ASSERT_TRUE(cache.read(entry.key, "13.0"));
  EXPECT_EQ(cache.read(entry.key, "13.0")->cubin, "machine code");
  EXPECT_FALSE(cache.read(entry.key, "12.9")) << "made by another compiler";
  EXPECT_TRUE(cache.read(entry.key, "")) << "no compiler: any entry will do";
  EXPECT_EQ(cache.list().size(), 1U);
  std::ofstream(folder.path("a/b/foreign.txt")) << "not ours";
  EXPECT_EQ(cache.clear(), 1);
  EXPECT_TRUE(fs::exists(folder.path("a/b/foreign.txt")));
  EXPECT_TRUE(cache.list().empty());
}

TEST(DiskCache, EveryTruncationAndEveryFlippedByteIsRefused) {
  const Folder folder;
  const DiskCache cache(folder.path());
  const KernelEntry entry = some_entry("machine code");
  ASSERT_TRUE(cache.write(entry));
  const fs::path file = only_file(folder.path());
  std::stringstream buffer;
  buffer << std::ifstream(file, std::ios::binary).rdbuf();
  const std::string whole = buffer.str();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    EXPECT_FALSE(cache.read(entry.key, "13.0")) << "cut to " << size << " bytes";
  }
  const std::size_t code = whole.find("machine code");
  for (std::size_t i = code; i < code + 12; ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << flipped;
    EXPECT_FALSE(cache.read(entry.key, "13.0")) << "byte " << i;
  }
  ASSERT_TRUE(cache.write(entry)) << "a damaged entry is written anew";
  EXPECT_TRUE(cache.read(entry.key, "13.0"));
}

TEST(DiskCache, AnotherKeysEntryIsRefused) {
  const Folder folder;
  const DiskCache cache(folder.path());
  KernelEntry entry = some_entry("machine code");
  ASSERT_TRUE(cache.write(entry));
  const fs::path file = only_file(folder.path());
  const std::string other(32, '0');
  fs::rename(file, folder.path(other + "-13.0.kernel"));
  EXPECT_FALSE(cache.read(other, "13.0"));
}

TEST(DiskCache, WhatOthersMayWriteIsNotRead) {
  const Folder folder;
  const std::string path = folder.path("own");
  const DiskCache cache(path);
  const mode_t before = ::umask(0);
  const KernelEntry entry = some_entry("x");
  EXPECT_TRUE(cache.write(entry));
  ::umask(before);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(cache.read(entry.key, ""));
  for (const fs::directory_entry& file : fs::directory_iterator(path)) {
    EXPECT_EQ(file.status().permissions() & (fs::perms::group_write | fs::perms::others_write),
              fs::perms::none);
    fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
  }
  EXPECT_FALSE(cache.read(entry.key, ""));
}

TEST(DiskCache, FolderThatCannotBeMadeCostsNothing) {
  const Folder folder;
  std::ofstream(folder.path("file")) << "x";
  const DiskCache cache(folder.path("file/below"));
  EXPECT_FALSE(cache.write(some_entry("x")));
  EXPECT_FALSE(cache.read(some_entry("x").key, "13.0"));
  EXPECT_TRUE(cache.list().empty());
  EXPECT_EQ(cache.clear(), 0);
  EXPECT_FALSE(DiskCache("").write(some_entry("x")));
}

TEST(CompileTurn, OneAtATime) {
  const Folder folder;
  const DiskCache cache(folder.path("own"));
  const std::string key = some_entry("x").key;
  // Atomic: a lock of a file orders threads, but a thread sanitizer does not know that.
  std::atomic<bool> held{true}, early{false};
  auto first = std::make_unique<CompileTurn>(cache, key);
  std::thread second([&] {
    const CompileTurn turn(cache, key);
    early = held.load();
  });
  const CompileTurn other(cache, std::string("zz") + key);  // of another kernel: no wait
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  held = false;
  first.reset();
  second.join();
  EXPECT_FALSE(early) << "two held the turn of one kernel";
  const CompileTurn nowhere(DiskCache(""), key), again(DiskCache(""), key);
}

TEST(DiskCache, WritersAndReadersAtOnce) {
  const Folder folder;
  const DiskCache cache(folder.path());
  const KernelEntry entry = some_entry(std::string(200000, 'c'));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        if (t % 2 == 0) {
          if (!cache.write(entry)) ++wrong;
        } else if (const auto read = cache.read(entry.key, "13.0")) {
          if (read->cubin != entry.cubin) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  int files = 0;
  for ([[maybe_unused]] const auto& file : fs::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1) << "temporary files are left";
}

TEST(Pack, MissingOrDamagedHasWhatCanBeRead) {
  const Folder folder;
  EXPECT_TRUE(Pack(folder.path("none")).list().empty());
  EXPECT_TRUE(Pack("").list().empty());
  KernelEntry first = some_entry("first"), second = some_entry("second");
  second.key[0] = 'f';
  std::stringstream text;
  write_entry(text, first);
  const auto size = static_cast<std::size_t>(text.tellp());
  write_entry(text, second);
  std::ofstream(folder.path("pack"), std::ios::binary) << text.str().substr(0, size + 40);
  const Pack pack(folder.path("pack"));
  ASSERT_EQ(pack.list().size(), 1U);
  EXPECT_EQ(pack.read(first.key)->cubin, "first");
  EXPECT_FALSE(pack.read(second.key));
}

TEST(PackUnits, FitTheLimitAndAreDistinct) {
  for (const int arch : {80, 86, 89, 90, 100, 120}) {
    const std::vector<PackUnit> units = pack_units(arch);
    EXPECT_LE(units.size(), kPackLimit) << arch;
    std::set<std::string> keys;
    for (const PackUnit& packed : units) keys.insert(unit_key(packed.unit, arch));
    EXPECT_EQ(keys.size(), units.size()) << "a unit is packed twice for " << arch;
  }
}

class WithNvrtc : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  }
};

TEST_F(WithNvrtc, CompilesWithoutAGpu) {
  const Compiled compiled = compile(copy_unit(), 90);
  EXPECT_EQ(compiled.cubin.substr(1, 3), "ELF");
  EXPECT_GT(compiled.report.registers, 0);
  EXPECT_FALSE(compiled.compiler.empty());
}

TEST_F(WithNvrtc, KnowsItsArchitectures) {
  EXPECT_TRUE(supports_arch(*find_nvrtc(), 80));
  EXPECT_TRUE(supports_arch(*find_nvrtc(), 90));
  EXPECT_FALSE(supports_arch(*find_nvrtc(), 81));
}

TEST_F(WithNvrtc, PackHoldsItsUnits) {
  const Folder folder;
  const DiskCache cache(folder.path("cache"));
  const std::vector<int> none;
  build_pack(folder.path("empty.pack"), none, cache, {});
  EXPECT_TRUE(Pack(folder.path("empty.pack")).list().empty());
  EXPECT_THROW(build_pack(folder.path("missing/x.pack"), none, cache, {}), Error);
}

TEST_F(WithNvrtc, ErrorCarriesTheLog) {
  KernelUnit unit = copy_unit();
  unit.config = ".no_such_field = 1";
  try {
    compile(unit, 80);
    FAIL() << "compiled";
  } catch (const CompileError& error) {
    EXPECT_NE(std::string(error.what()).find("no_such_field"), std::string::npos) << error.what();
  }
}

TEST_F(WithNvrtc, CompilesOnceThenReadsTheCache) {
  const Folder folder;
  const DiskCache cache(folder.path());
  bool cached = true;
  const KernelEntry compiled = compile_through(copy_unit(), 80, cache, &cached);
  EXPECT_FALSE(cached);
  const KernelEntry read = compile_through(copy_unit(), 80, cache, &cached);
  EXPECT_TRUE(cached);
  EXPECT_EQ(read.cubin, compiled.cubin);
  std::ofstream(only_file(folder.path()), std::ios::trunc) << "damage";
  EXPECT_EQ(compile_through(copy_unit(), 80, cache, &cached).cubin_bytes, compiled.cubin_bytes);
  EXPECT_FALSE(cached) << "a damaged entry is compiled again";
}

TEST_F(WithNvrtc, OfManyWhoMissAKernelOneCompilesIt) {
  const Folder folder;
  const DiskCache cache(folder.path());
  std::atomic<int> compiled{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      bool cached = true;
      compile_through(copy_unit(), 80, cache, &cached);
      if (!cached) ++compiled;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
}

}  // namespace
}  // namespace tilewise::cuda
