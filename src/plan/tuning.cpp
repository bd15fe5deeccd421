#include "plan/tuning.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "build_info.h"
#include "problem/plain_text.h"

namespace tilewise {
namespace {

constexpr const char* kHeader = "tilewise-tuning 1";
constexpr const char* kChecksum = "checksum ";
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

/// FNV-1a, against damage.
std::string checksum(const std::string& text) {
  std::uint64_t state = 0xcbf29ce484222325U;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(state));
  return digits.data();
}

std::string line_of(const std::string& key, const Winner& w) {
  PlainStream out;
  out << key << '\t' << w.kernel << ' ' << w.form.block_m << ' ' << w.form.block_n << ' '
      << w.form.splits << ' ' << w.form.threads << ' ' << w.ms << ' ' << w.model_ms << '\n';
  return out.str();
}

bool read_line(const std::string& line, std::string& key, Winner& w) {
  const std::size_t tab = line.find('\t');
  if (tab == std::string::npos || tab == 0) return false;
  key = line.substr(0, tab);
  PlainStream words(line.substr(tab + 1));
  Form& f = w.form;
  words >> w.kernel >> f.block_m >> f.block_n >> f.splits >> f.threads >> w.ms >> w.model_ms;
  std::string more;
  return !words.fail() && !(words >> more) && std::isfinite(w.ms) && w.ms > 0.0 && f.splits >= 1 &&
         f.threads >= 1;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// " bias=f32" and the like: the options that choose among kernels, each by what they ask of it.
std::string options_text(const Problem& p) {
  PlainStream out;
  const auto flag = [&](bool on, const char* name) {
    if (on) out << ' ' << name;
  };
  flag(p.causal == Causal::bottom_right, "causal");
  flag(p.causal == Causal::top_left, "causal_top_left");
  if (p.left != Problem::kUnbounded) out << " left=" << p.left;
  if (p.right != Problem::kUnbounded && p.causal == Causal::none) out << " right=" << p.right;
  flag(!(p.scale > 0.0F), "scale<=0");
  flag(p.softcap != 0.0, "softcap");
  flag(p.alibi_slopes.defined(), "alibi");
  flag(p.sinks.defined(), "sinks");
  flag(p.dropout.p > 0.0, "dropout");
  flag(p.precision == Precision::tf32, "tf32");
  flag(p.precision == Precision::refined, "refined");
  flag(p.d_lse.defined(), "dlse");
  flag(p.dbias.defined(), "dbias");
  flag(p.dsinks.defined(), "dsinks");
  return out.str();
}

/// Types, and strides in elements.
std::string layout_text(const Problem& p) {
  PlainStream out;
  const auto add = [&](const char* name, const Tensor& t) {
    if (!t.defined()) return;
    out << ' ' << name << '=' << dtype_name(t.dtype);
    for (int axis = 0; axis < t.rank; ++axis) {
      const auto a = static_cast<std::size_t>(axis);
      out << (axis == 0 ? ':' : ',') << (t.sizes[a] > 1 ? t.strides[a] : 0);
    }
  };
  add("q", p.q), add("k", p.k), add("v", p.v), add("o", p.o), add("do", p.d_o);
  add("dq", p.dq), add("dk", p.dk), add("dv", p.dv);
  add("bias", p.bias), add("mask", p.mask);
  return out.str();
}

}  // namespace

Tuning Tuning::parse(const std::string& text, const std::string& path,
                     const std::string& identity) {
  Tuning tuning(identity);
  const auto ignore = [&](const std::string& reason) {
    Tuning empty(identity);
    empty.ignored_ = path + " is ignored: " + reason;
    return empty;
  };
  const std::size_t end = text.rfind(kChecksum);
  if (end == std::string::npos ||
      text.substr(end) != kChecksum + checksum(text.substr(0, end)) + '\n')
    return ignore("it is damaged; `tilewise tune` replaces it");
  PlainStream lines(text.substr(0, end));
  std::string line;
  std::getline(lines, line);
  if (line != kHeader) return ignore("it has another format version");
  std::getline(lines, line);
  if (line != identity) return ignore("it was measured on " + line + ", this is " + identity);
  for (int number = 3; std::getline(lines, line); ++number) {
    std::string key;
    Winner winner;
    if (!read_line(line, key, winner))
      return ignore("line " + std::to_string(number) + " is no winner");
    tuning.winners_[key] = std::move(winner);
  }
  return tuning;
}

Tuning Tuning::read(const std::string& path, const std::string& identity) {
  struct stat status {};
  if (path.empty() || ::lstat(path.c_str(), &status) != 0) return Tuning(identity);
  const auto ignore = [&](const char* reason) {
    Tuning empty(identity);
    empty.ignored_ = path + " is ignored: " + reason;
    return empty;
  };
  if (!S_ISREG(status.st_mode) || status.st_size > kMostBytes)
    return ignore("it is not a tuning file");
  if (status.st_uid != ::geteuid()) return ignore("it belongs to another user");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return ignore("other users can write to it");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return ignore("it cannot be read");
  return parse(text.str(), path, identity);
}

const Winner* Tuning::find(const std::string& key) const {
  const auto at = winners_.find(key);
  return key.empty() || at == winners_.end() ? nullptr : &at->second;
}

void Tuning::set(const std::string& key, Winner winner) { winners_[key] = std::move(winner); }

std::string Tuning::text() const {
  std::string out = std::string(kHeader) + '\n' + identity_ + '\n';
  for (const auto& [key, winner] : winners_) out += line_of(key, winner);
  return out + kChecksum + checksum(out) + '\n';
}

std::string tuning_key(const Problem& p, const Hardware& machine) {
  const bool has_lengths = p.packed || p.paged || p.key_lengths.defined();
  const bool has_functions = p.score_mod != nullptr || p.score_function.defined() ||
                             p.mask_function.defined() || p.block_list.defined();
  if (has_lengths || has_functions || p.deterministic) return "";
  PlainStream out;
  out << pass_name(p.pass) << ' ' << dtype_name(p.dtype) << " b" << p.batch << " h" << p.heads_q
      << '/' << p.heads_k << " q" << p.seq_q << " k" << p.seq_k << " d" << p.head_dim << '/'
      << p.head_dim_v << options_text(p) << layout_text(p);
  if (p.device.type == DeviceType::cpu) out << " t" << machine.threads;
  return out.str();
}

std::string tuning_identity(const Hardware& machine, const std::string& driver) {
  PlainStream out;
  out << machine.name << ", ";
  if (machine.device.type == DeviceType::cuda) {
    out << "sm_" << machine.arch << ", " << machine.multiprocessors << " multiprocessors, driver "
        << driver;
  } else {
    out << machine.isa;
  }
  out << ", tilewise " << TILEWISE_VERSION;
  return out.str();
}

std::string state_folder() {
  if (std::string folder = environment("TILEWISE_STATE_DIR"); !folder.empty()) return folder;
  if (const std::string base = environment("XDG_STATE_HOME"); !base.empty())
    return base + "/tilewise";
  if (const std::string home = environment("HOME"); !home.empty())
    return home + "/.local/state/tilewise";
  return {};
}

std::string tuning_path(const Hardware& machine) {
  const std::string folder = state_folder();
  if (folder.empty()) return {};
  std::string name;
  for (const char c : machine.name + (machine.isa.empty() ? "" : "-" + machine.isa)) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  }
  return folder + "/tuning-" + name + ".txt";
}

}  // namespace tilewise
