#include "tools/flag_words.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace sluice::tools {
namespace {

TEST(FlagWords, ParametersBecomeTheFlagsThatSetThem) {
  EXPECT_EQ(in_flags("raise `memory_budget_bytes` to 3GiB, or lower `context_tokens`"),
            "raise --cpu-mem to 3GiB, or lower --ctx-size");
  EXPECT_EQ(in_flags("`kv_dtype`"), "--kv-dtype");
  EXPECT_EQ(in_flags(""), "");
  EXPECT_EQ(in_flags("nothing to change"), "nothing to change");
}

TEST(FlagWords, WhatNoFlagSetsStays) {
  EXPECT_EQ(in_flags("a `file` of `kv_dtype` and a ` alone"),
            "a `file` of --kv-dtype and a ` alone");
  EXPECT_EQ(in_flags("ends `kv_dtype"), "ends `kv_dtype");
  EXPECT_EQ(in_flags("``kv_dtype``"), "`--kv-dtype`");
}

// Every name in backquotes in a text of the library is one that the table knows.
TEST(FlagWords, KnowEveryParameterThatTheLibraryNames) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(SLUICE_FIXTURES).parent_path().parent_path();
  const std::regex quoted("\"[^\"\n]*`([a-z_]+)`");
  std::set<std::string> names;
  for (const char* tree : {"src", "policy", "io", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(root / tree)) {
      if (entry.path().extension() != ".cc") continue;
      std::ifstream file(entry.path());
      std::ostringstream text;
      text << file.rdbuf();
      const std::string source = std::regex_replace(text.str(), std::regex("//[^\n]*"), "");
      for (std::sregex_iterator at(source.begin(), source.end(), quoted), end; at != end; ++at)
        names.insert((*at)[1]);
    }
  EXPECT_GT(names.size(), 20u);
  for (const std::string& name : names)
    EXPECT_NE(in_flags("`" + name + "`"), "`" + name + "`") << name << " is no flag";
}

}  // namespace
}  // namespace sluice::tools
