// docs/model-types.md says which model types of transformers are read: here it is true.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/family.h"

namespace sluice {
namespace {

// What stands between backquotes.
std::vector<std::string> backquoted(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at + 1)) {
    const size_t end = text.find('`', at + 1);
    out.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

bool is_read(const nlohmann::json& config) {
  try {
    make_family_model(ModelConfig(config.dump(), "config.json"));
  } catch (const Error& error) {
    return error.text().find("is not supported") == std::string::npos;
  }
  return true;
}

struct Section {
  int read = 0, refused = 0;  // as its title says
  std::vector<std::string> lines;
};

std::vector<Section> sections() {
  const std::filesystem::path page =
      std::filesystem::path(SLUICE_FIXTURES) / "../../docs/model-types.md";
  std::istringstream text(::sluice::read_file(page, 1 << 20));
  std::vector<Section> out;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("## ")) {
      Section& section = out.emplace_back();
      const size_t counts = line.find(": ");
      EXPECT_EQ(
          sscanf(line.c_str() + counts, ": %d read, %d refused", &section.read, &section.refused),
          2)
          << line;
    } else if (!out.empty()) {
      out.back().lines.push_back(line);
    }
  }
  return out;
}

TEST(ModelTypes, ThePageIsWhatFamiliesRead) {
  const std::vector<Section> all = sections();
  ASSERT_EQ(all.size(), 2u);
  for (const Section& section : all) {
    std::string read, refused;  // the paragraphs
    std::string* paragraph = nullptr;
    int rows = 0;
    for (const std::string& line : section.lines) {
      if (line.starts_with("Read: ")) paragraph = &read;
      if (line.starts_with("Refused: ")) paragraph = &refused;
      if (line.empty()) paragraph = nullptr;
      if (paragraph) *paragraph += line + " ";
      if (!line.starts_with("| `")) continue;
      const std::vector<std::string> row = backquoted(line);
      ASSERT_EQ(row.size(), 2u) << line;
      nlohmann::json config{{"model_type", row[0]}};
      if (row[1] != row[0]) config["text_config"] = {{"model_type", row[1]}};
      EXPECT_TRUE(is_read(config)) << line;
      ++rows;
    }
    const std::vector<std::string> names = backquoted(read);
    for (const std::string& name : names) EXPECT_TRUE(is_read({{"model_type", name}})) << name;
    EXPECT_EQ(rows + std::ssize(names), section.read);
    int others = 0;
    std::istringstream items(refused);
    for (std::string item; std::getline(items, item, ','); ++others) {
      const std::vector<std::string> named = backquoted(item);
      ASSERT_FALSE(named.empty()) << item;
      nlohmann::json config{{"model_type", named[0]}};
      if (named.size() > 1) config["text_config"] = {{"model_type", named[1]}};
      EXPECT_FALSE(is_read(config)) << item;
    }
    EXPECT_EQ(others, section.refused);
  }
}

}  // namespace
}  // namespace sluice
