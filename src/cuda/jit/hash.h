/// A 128-bit fingerprint of text: names cache files and notices damage. Not a defence against
/// forgery.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tilewise::cuda {

/// FNV-1a with 128 bits (Fowler, Noll, Vo).
class Fingerprint {
 public:
  /// Adds a piece; pieces do not run together: ("ab", "c") differs from ("a", "bc").
  Fingerprint& add(std::string_view piece);
  /// 32 hexadecimal digits.
  std::string hex() const;

 private:
  __extension__ using Wide = unsigned __int128;
  void add_byte(unsigned char byte);
  static constexpr Wide wide(std::uint64_t high, std::uint64_t low) {
    return (static_cast<Wide>(high) << 64) | low;
  }
  Wide state_ = wide(0x6c62272e07bb0142, 0x62b821756295c58d);
};

}  // namespace tilewise::cuda
