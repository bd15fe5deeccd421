/// What the tests of the file readers share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/error.h"

namespace tilewise::files {

inline std::span<const std::byte> as_file(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// The array's elements, as the test writes them down.
template <class T>
Array array_of(DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  Array array = make_array("test", dtype, std::move(shape));
  EXPECT_EQ(array.bytes.size(), values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

template <class T>
std::vector<T> values_of(const Array& array) {
  std::vector<T> values(array.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

/// An array of each type, each byte its own, so that a swap shows.
inline Array counting_array(DType dtype, std::vector<std::int64_t> shape) {
  Array array = make_array("test", dtype, std::move(shape));
  for (std::size_t i = 0; i < array.bytes.size(); ++i) {
    array.bytes[i] = static_cast<std::byte>(dtype == DType::boolean ? i % 2 : 7 * i + 1);
  }
  return array;
}

inline const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> dtypes = {DType::float64, DType::float32, DType::bfloat16,
                                            DType::float16, DType::boolean, DType::uint8,
                                            DType::int32,   DType::int64};
  return dtypes;
}

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void put(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// A folder of the test's own, removed at its end.
class FolderTest : public testing::Test {
 public:
  FolderTest() {
    std::string name = testing::TempDir() + "tilewise-files-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

 protected:
  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path folder_;
};

/// That a message says what it should.
inline testing::AssertionResult contains(std::string_view message, std::string_view what) {
  if (message.find(what) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << message << "\" does not say \"" << what << "\"";
}

/// The message of the FileError that `action` throws; what it is not, if it throws none.
template <class Action>
std::string file_error_of(Action action) {
  try {
    action();
  } catch (const FileError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a FileError: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no FileError";
  return {};
}

}  // namespace tilewise::files
