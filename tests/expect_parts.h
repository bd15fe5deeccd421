/// Words that a message must hold.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace tilewise {

inline void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << '"' << text << "\" lacks \"" << part << '"';
  }
}

}  // namespace tilewise
