#include "cuda/jit/entry.h"

#include <charconv>
#include <istream>
#include <locale>
#include <ostream>
#include <set>
#include <utility>

#include "cuda/jit/hash.h"
#include "embedded_sources.h"

namespace tilewise::cuda {
namespace {

constexpr std::string_view kFormat = "tilewise-kernel 1";
/// More than any kernel's machine code: a larger number in a description is damage.
constexpr std::int64_t kMaxCubinBytes = std::int64_t{64} << 20;

std::string_view source_text(std::string_view path) {
  for (const EmbeddedSource& source : embedded_sources()) {
    if (source.path == path) return source.text;
  }
  return {};
}

/// Adds the text of every embedded source that `text` includes, each once, in the order of first
/// mention.
void add_includes(std::string_view text, std::set<std::string_view>& seen, Fingerprint& key) {
  constexpr std::string_view kInclude = "#include \"";
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos;
       at = text.find(kInclude, at)) {
    at += kInclude.size();
    const std::string_view path = text.substr(at, text.find('"', at) - at);
    const std::string_view included = source_text(path);
    if (included.empty()) continue;
    const std::string_view stored = included;
    if (!seen.insert(stored).second) continue;
    key.add(path).add(included);
    add_includes(included, seen, key);
  }
}

std::string checksum(std::string_view cubin) { return Fingerprint().add(cubin).hex(); }

/// Splits "word rest" at the first blank.
std::pair<std::string, std::string> split(const std::string& line) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string::npos) return {line, ""};
  return {line.substr(0, blank), line.substr(blank + 1)};
}

template <class Number>
Number number(const std::string& text) {
  Number value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

struct Described {
  KernelEntry entry;
  std::string checksum;
};

void take_line(const std::string& word, const std::string& value, Described& d) {
  KernelEntry& e = d.entry;
  CompileReport& r = e.report;
  if (word == "key") e.key = value;
  if (word == "name") e.name = value;
  if (word == "config") e.config = value;
  if (word == "compiler") e.compiler = value;
  if (word == "arch") e.arch = number<int>(value);
  if (word == "threads") e.threads = number<int>(value);
  if (word == "shared") e.shared_bytes = number<int>(value);
  if (word == "registers") r.registers = number<int>(value);
  if (word == "spill_stores") r.spill_store_bytes = number<int>(value);
  if (word == "spill_loads") r.spill_load_bytes = number<int>(value);
  if (word == "stack") r.stack_bytes = number<int>(value);
  if (word == "static_shared") r.static_shared_bytes = number<int>(value);
  if (word == "mma") r.mma_count = number<int>(value);
  if (word == "wgmma") r.wgmma_count = number<int>(value);
  if (word == "seconds") r.seconds = number<double>(value);
  if (word == "note") r.notes.push_back(value);
  if (word == "bytes") e.cubin_bytes = number<std::int64_t>(value);
  if (word == "checksum") d.checksum = value;
}

std::optional<Described> read_header(std::istream& in) {
  std::string line;
  if (!std::getline(in, line) || line != kFormat) return std::nullopt;
  Described described;
  while (std::getline(in, line) && !line.empty()) {
    const auto [word, value] = split(line);
    take_line(word, value, described);
  }
  const std::int64_t bytes = described.entry.cubin_bytes;
  if (!in || bytes <= 0 || bytes > kMaxCubinBytes) return std::nullopt;
  return described;
}

}  // namespace

std::string unit_key(const KernelUnit& unit, int arch) {
  Fingerprint key;
  const std::string source = unit.source();
  key.add(kFormat).add(arch_name(arch)).add(source);
  std::set<std::string_view> seen;
  add_includes(source, seen, key);
  return key.hex();
}

KernelEntry make_entry(const KernelUnit& unit, int arch, Compiled compiled) {
  KernelEntry entry;
  entry.key = unit_key(unit, arch);
  entry.name = unit.name();
  entry.config = unit.config;
  entry.compiler = std::move(compiled.compiler);
  entry.arch = arch;
  entry.threads = unit.threads;
  entry.shared_bytes = unit.shared_bytes;
  entry.report = std::move(compiled.report);
  entry.cubin_bytes = static_cast<std::int64_t>(compiled.cubin.size());
  entry.cubin = std::move(compiled.cubin);
  return entry;
}

void write_entry(std::ostream& out, const KernelEntry& entry) {
  const CompileReport& r = entry.report;
  out.imbue(std::locale::classic());  // a program's locale may group digits
  out << kFormat << "\nkey " << entry.key << "\nname " << entry.name << "\nconfig " << entry.config
      << "\ncompiler " << entry.compiler << "\narch " << entry.arch << "\nthreads " << entry.threads
      << "\nshared " << entry.shared_bytes << "\nregisters " << r.registers << "\nspill_stores "
      << r.spill_store_bytes << "\nspill_loads " << r.spill_load_bytes << "\nstack "
      << r.stack_bytes << "\nstatic_shared " << r.static_shared_bytes << "\nmma " << r.mma_count
      << "\nwgmma " << r.wgmma_count << "\nseconds " << r.seconds << '\n';
  for (const std::string& note : r.notes) out << "note " << note << '\n';
  out << "bytes " << entry.cubin.size() << "\nchecksum " << checksum(entry.cubin) << "\n\n";
  out.write(entry.cubin.data(), static_cast<std::streamsize>(entry.cubin.size()));
  out << '\n';
}

std::optional<KernelEntry> read_entry(std::istream& in) {
  std::optional<Described> described = read_header(in);
  if (!described) return std::nullopt;
  KernelEntry& entry = described->entry;
  entry.cubin.resize(static_cast<std::size_t>(entry.cubin_bytes));
  in.read(entry.cubin.data(), entry.cubin_bytes);
  if (!in || in.get() != '\n' || checksum(entry.cubin) != described->checksum) return std::nullopt;
  return std::move(entry);
}

std::optional<KernelEntry> read_description(std::istream& in) {
  std::optional<Described> described = read_header(in);
  if (!described) return std::nullopt;
  in.seekg(described->entry.cubin_bytes + 1, std::ios::cur);
  return std::move(described->entry);
}

}  // namespace tilewise::cuda
