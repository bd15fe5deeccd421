// The committed corpora of the fuzz targets: files that other programs wrote (ok_*) must be read,
// damaged ones (bad_*) refused. And the example's data.

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/files/npy.h"
#include "cli/files/safetensors.h"
#include "tests/files/files_testing.h"

namespace tilewise::files {
namespace {

namespace fs = std::filesystem;

template <class Load>
void check_corpus(const std::string& format, Load load) {
  int ok = 0, bad = 0;
  for (const auto& file :
       fs::directory_iterator(fs::path(TILEWISE_SOURCE_DIR) / "tests/fuzz/corpus" / format)) {
    SCOPED_TRACE(file.path().filename());
    if (file.path().filename().string().starts_with("ok_")) {
      EXPECT_NO_THROW(load(file.path()));
      ++ok;
    } else {
      EXPECT_THROW(load(file.path()), FileError);
      ++bad;
    }
  }
  EXPECT_GE(ok, 8);
  EXPECT_GE(bad, 8);
}

TEST(Corpus, Npy) {
  check_corpus("npy", [](const std::filesystem::path& path) { load_npy(path); });
}

TEST(Corpus, Safetensors) { check_corpus("safetensors", load_safetensors); }

TEST(Corpus, NumpysOwnValues) {
  const fs::path folder = fs::path(TILEWISE_SOURCE_DIR) / "tests/fuzz/corpus/npy";
  std::vector<float> counted(24);
  for (std::size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<float>(i) / 2;
  // arange(24).reshape(2, 3, 4) / 2, in both orders
  for (const std::string name : {"ok_f4_c_order.npy", "ok_f4_fortran_order.npy"}) {
    const Array array = load_npy(folder / name);
    EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3, 4})) << name;
    EXPECT_EQ(values_of<float>(array), counted) << name;
  }
}

TEST(ExampleData, IsTheAttentionOfAModel) {
  const Safetensors content = load_safetensors(fs::path(TILEWISE_SOURCE_DIR) /
                                               "examples/data/minilm_layer5_qkv.safetensors");
  const std::int64_t heads = 12, dim = 32;
  const auto tokens =
      nlohmann::json::parse(content.metadata.at("tokens")).get<std::vector<std::string>>();
  const auto seq = static_cast<std::int64_t>(tokens.size());
  for (const std::string name : {"q", "k", "v"}) {
    const Array* array = content.find(name);
    ASSERT_NE(array, nullptr) << name;
    EXPECT_EQ(array->dtype, DType::float32);
    EXPECT_EQ(array->shape, (std::vector<std::int64_t>{1, heads, seq, dim}));
    EXPECT_FALSE(first_nan(*array).has_value());
  }
  EXPECT_EQ(content.metadata.at("layout"), "BHSD");

  // In head 11, "birds" attends most to "worms": 0.28 of the softmax.
  const std::vector<float> q = values_of<float>(*content.find("q"));
  const std::vector<float> k = values_of<float>(*content.find("k"));
  const auto row = [&](const std::vector<float>& values, std::int64_t token) {
    return std::span(values).subspan(static_cast<std::size_t>((11 * seq + token) * dim), 32);
  };
  const auto birds = std::distance(tokens.begin(), std::ranges::find(tokens, "birds"));
  std::vector<double> weights;
  double sum = 0.0;
  for (std::int64_t j = 0; j < seq; ++j) {
    double score = 0.0;
    for (std::size_t d = 0; d < 32; ++d) score += double{row(q, birds)[d]} * row(k, j)[d];
    weights.push_back(std::exp(score / std::sqrt(32.0)));
    sum += weights.back();
  }
  const auto most = std::ranges::max_element(weights);
  EXPECT_EQ(tokens[static_cast<std::size_t>(most - weights.begin())], "worms");
  EXPECT_NEAR(*most / sum, 0.28, 0.01);
}

}  // namespace
}  // namespace tilewise::files
