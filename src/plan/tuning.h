/// Tuning: what `tilewise tune` measured on the device at hand. choose() asks it before the model.
#pragma once

#include <map>
#include <string>

#include "plan/forms.h"
#include "tilewise/plan.h"

namespace tilewise {

/// The fastest kernel and form of a problem.
struct Winner {
  std::string kernel;
  Form form;
  double ms = 0.0;        ///< as measured
  double model_ms = 0.0;  ///< of what the model would have taken, measured beside it
};

/// Problems by tuning_key(), in a text file of their own for each device:
///
///   tilewise-tuning 1
///   NVIDIA H200, sm_90, 132 multiprocessors, driver 13.0, tilewise 0.1.0
///   forward bf16 b2 h16/16 q4096 k4096 d128/128 causal q=...<tab>flash_fwd_sm90 128 128 1 1 0.51
///   0.53
///   ...
///   checksum 0123456789abcdef
class Tuning {
 public:
  Tuning() = default;
  explicit Tuning(std::string identity) : identity_(std::move(identity)) {}

  /// Parses a file's text. A damaged file, or one of another identity, is ignored as a whole.
  /// ignored() then gives the reason and `path`.
  static Tuning parse(const std::string& text, const std::string& path,
                      const std::string& identity);
  /// Reads the file. A missing file is empty. A file of another user, or one that other users can
  /// write to, is ignored.
  static Tuning read(const std::string& path, const std::string& identity);

  /// Null where the problem was not measured.
  const Winner* find(const std::string& key) const;
  void set(const std::string& key, Winner winner);
  std::string text() const;

  std::size_t size() const { return winners_.size(); }
  const std::string& ignored() const { return ignored_; }

 private:
  std::string identity_, ignored_;
  std::map<std::string, Winner> winners_;
};

/// What winners are kept by: shape, type, options and strides of a problem, on a CPU the threads.
/// Empty where nothing is tuned: packed and paged problems, lengths, block lists, expressions, and
/// `deterministic`, whose choice may not depend on the batch.
std::string tuning_key(const Problem& problem, const Hardware& machine);

/// Device, driver and library; with another one, times say nothing.
std::string tuning_identity(const Hardware& machine, const std::string& driver);

/// TILEWISE_STATE_DIR, else XDG_STATE_HOME/tilewise, else HOME/.local/state/tilewise, else none.
std::string state_folder();

/// tuning-DEVICE.txt of state_folder(); empty where there is none.
std::string tuning_path(const Hardware& machine);

}  // namespace tilewise
