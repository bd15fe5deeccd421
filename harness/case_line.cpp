#include "harness/case_line.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace tilewise {

CaseLine::CaseLine(std::string_view line, const std::vector<std::string_view>& own) {
  const std::size_t colon = line.rfind(": ");
  name_ = line.substr(0, colon);
  if (colon == std::string_view::npos) fail("expected NAME: WORDS");
  std::string rest;
  for (std::string_view text = line.substr(colon + 1); !text.empty();) {
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
    const std::string word(text.substr(0, text.find(' ')));
    text.remove_prefix(word.size());
    const std::size_t key_size = std::min(word.size(), word.find('='));
    if (std::find(own.begin(), own.end(), word.substr(0, key_size)) != own.end()) {
      take_own(word, key_size);
    } else {
      rest += word + ' ';
    }
  }
  try {
    words_ = parse_case(rest);
  } catch (const InvalidArgument& error) {
    fail(error.what());
  }
}

void CaseLine::take_own(const std::string& word, std::size_t key_size) {
  int value = 1;
  if (key_size < word.size()) {
    const char* end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data() + key_size + 1, end, value);
    if (error != std::errc() || rest != end) fail("word '" + word + "': expected an integer");
  }
  const std::string key = word.substr(0, key_size);
  const auto is_given = [&](const auto& other) { return other.first == key; };
  if (std::any_of(own_.begin(), own_.end(), is_given))
    fail("word '" + word + "': expected " + key + " once");
  own_.emplace_back(key, value);
}

int CaseLine::own(std::string_view key, int otherwise) const {
  for (const auto& [given, value] : own_) {
    if (given == key) return value;
  }
  return otherwise;
}

void CaseLine::expect(bool good, const char* what) const {
  if (!good) fail(std::string("expected ") + what);
}

void CaseLine::expect_taken() const {
  if (words_ != plain()) fail("the program does not take '" + format_case(words_) + "'");
}

const Case& CaseLine::plain() {
  static const Case plain;
  return plain;
}

void CaseLine::fail(const std::string& text) const {
  throw InvalidArgument("'" + name_ + "': " + text);
}

void for_each_line(const char* path, const std::vector<std::string_view>& own,
                   const std::function<void(CaseLine&)>& check) {
  std::ifstream file(path);
  if (!file) throw InvalidArgument(std::string("case file '") + path + "' cannot be opened");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    CaseLine parsed(line, own);
    check(parsed);
  }
}

}  // namespace tilewise
