#include "tools/spellings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::tools {
namespace {

std::vector<std::string> normalised(std::vector<std::string> words) {
  words.insert(words.begin(), "sluice");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return normalise_arguments(static_cast<int>(argv.size()), argv.data());
}

using Words = std::vector<std::string>;

TEST(Spellings, ShortNamesBecomeLongOnes) {
  EXPECT_EQ(
      normalised({"run", "-m", "a.gguf", "-ngl", "99", "-ot", "exps=CPU"}),
      (Words{"run", "-m", "a.gguf", "--n-gpu-layers", "99", "--override-tensor", "exps=CPU"}));
  EXPECT_EQ(normalised({"bench", "serve", "http://x"}), (Words{"bench-serve", "http://x"}));
  EXPECT_EQ(normalised({}), Words{});
}

// The types that llama.cpp takes: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1.
TEST(Spellings, TypesOfKeysAndOfValuesAreOneFormat) {
  const auto format = [](const Words& words) {
    const Words out = normalised(words);
    EXPECT_EQ(out.size(), 3u);
    EXPECT_EQ(out.at(1), "--kv-dtype");
    return out.at(2);
  };
  EXPECT_EQ(format({"run", "-ctk", "q8_0", "-ctv", "q8_0"}), "int8");
  EXPECT_EQ(format({"run", "-ctv", "q4_0", "-ctk", "q8_0"}), "k8v4");
  EXPECT_EQ(format({"run", "--cache-type-k", "q8_0", "--cache-type-v", "q4_1"}), "k8v4");
  EXPECT_EQ(format({"run", "-ctk", "q4_0", "-ctv", "q4_0"}), "int4");
  EXPECT_EQ(format({"run", "-ctk", "f16", "-ctv", "f16"}), "f16");
  EXPECT_EQ(format({"run", "-ctk", "int8"}), "int8") << "one of them is for both";
  EXPECT_EQ(format({"run", "-ctv", "q8_0"}), "int8");
  // What nothing here stores is refused in the words that were written.
  EXPECT_EQ(format({"run", "-ctk", "q5_1", "-ctv", "q5_1"}), "q5_1");
  EXPECT_EQ(format({"run", "-ctk", "f16", "-ctv", "q8_0"}), "f16/q8_0");
  EXPECT_EQ(format({"run", "-ctk", "q4_0", "-ctv", "q8_0"}), "q4_0/q8_0");
}

TEST(Spellings, ATypeThatIsMissingIsLeftToTheParser) {
  EXPECT_EQ(normalised({"run", "-ctk"}), (Words{"run", "-ctk"}));
  EXPECT_EQ(normalised({"run", "-ctk", "q8_0", "-p", "x", "-ctv", "q8_0"}),
            (Words{"run", "--kv-dtype", "int8", "-p", "x"}));
}

}  // namespace
}  // namespace sluice::tools
