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

// The library's sources without their comments.
std::vector<std::string> sources() {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(SLUICE_FIXTURES).parent_path().parent_path();
  std::vector<std::string> out;
  for (const char* tree : {"src", "policy", "io", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(root / tree)) {
      if (entry.path().extension() != ".cc") continue;
      std::ifstream file(entry.path());
      std::ostringstream text;
      text << file.rdbuf();
      out.push_back(std::regex_replace(text.str(), std::regex("//[^\n]*"), ""));
    }
  return out;
}

// Every match of `pattern`, its first group.
std::set<std::string> matches(const char* pattern) {
  const std::regex wanted(pattern);
  std::set<std::string> out;
  for (const std::string& source : sources())
    for (std::sregex_iterator at(source.begin(), source.end(), wanted), end; at != end; ++at)
      out.insert((*at)[1]);
  return out;
}

TEST(FlagWords, NoTextOfTheLibraryNamesAFlag) {
  for (const std::string& text : matches("(\"([^\"\n]*[ (:;])?--[a-z][^\"\n]*\")"))
    // A whole command is another thing.
    EXPECT_TRUE(text.find("sluice ") != std::string::npos ||
                text.find("inspect STORE --verify") != std::string::npos)
        << text;
}

// Every name in backquotes in a text of the library is one that the table knows.
TEST(FlagWords, KnowEveryParameterThatTheLibraryNames) {
  const std::set<std::string> names = matches("\"[^\"\n]*`([a-z_]+)`");
  EXPECT_GT(names.size(), 20u);
  for (const std::string& name : names)
    EXPECT_NE(in_flags("`" + name + "`"), "`" + name + "`") << name << " is no flag";
}

}  // namespace
}  // namespace sluice::tools
