#include "cuda/jit/hash.h"

namespace tilewise::cuda {

void Fingerprint::add_byte(unsigned char byte) {
  state_ ^= byte;
  state_ *= wide(0x0000000001000000, 0x000000000000013b);
}

Fingerprint& Fingerprint::add(std::string_view piece) {
  for (const char c : piece) add_byte(static_cast<unsigned char>(c));
  for (std::size_t size = piece.size(), i = 0; i < sizeof size; ++i, size >>= 8) {
    add_byte(static_cast<unsigned char>(size & 0xFF));
  }
  return *this;
}

std::string Fingerprint::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(32, '0');
  Wide rest = state_;
  for (std::size_t i = text.size(); i-- > 0; rest >>= 4) {
    text[i] = kDigits[static_cast<std::size_t>(rest & 0xF)];
  }
  return text;
}

}  // namespace tilewise::cuda
