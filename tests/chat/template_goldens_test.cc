// Templates of real models and snippets of the language against what Python's Jinja2 made of them
// (scripts/golden/chat.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/chat/template.h"

namespace sluice::chat {
namespace {

using nlohmann::ordered_json;

std::string folder() { return std::string(SLUICE_FIXTURES) + "/chat"; }

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<ordered_json> goldens() {
  std::ifstream file(folder() + "/goldens.jsonl");
  std::vector<ordered_json> out;
  for (std::string line; std::getline(file, line);) out.push_back(ordered_json::parse(line));
  return out;
}

Dict variables(const ordered_json& golden) {
  Dict out;
  if (golden.contains("template")) {
    out.set("tools", None{});
    out.set("documents", None{});
    out.set("add_generation_prompt", true);
    out.set("bos_token", "<s>");
    out.set("eos_token", "</s>");
  }
  for (const auto& [name, value] : golden["values"].items()) out.set(name, Value::from_json(value));
  out.set("strftime_now",
          Callable{"strftime_now", [](const Arguments&) -> Value { return "DATE"; }});
  return out;
}

TEST(TemplateGoldens, PrintWhatJinjaPrintsAndRefuseWhatItRefuses) {
  const auto all = goldens();
  ASSERT_GT(all.size(), 400u);
  for (const ordered_json& golden : all) {
    const bool is_file = golden.contains("template");
    const std::string source =
        is_file ? read(folder() + "/templates/" + golden["template"].get<std::string>())
                : golden["source"].get<std::string>();
    const std::string name = is_file ? golden["template"].get<std::string>() + ", " +
                                           golden["conversation"].get<std::string>()
                                     : source;
    try {
      const std::string text = Template(source).render(variables(golden));
      if (golden["text"].is_null())
        ADD_FAILURE() << name << "\n  Jinja2: " << golden["error"] << "\n  here: " << text;
      else
        EXPECT_EQ(text, golden["text"].get<std::string>()) << name;
    } catch (const TemplateError& error) {
      if (!golden["text"].is_null()) {
        ADD_FAILURE() << name << ": " << error.what();
        continue;
      }
      // What a template says itself arrives word by word.
      const std::string said = golden["error"].get<std::string>();
      if (said.starts_with("TemplateError: ")) {
        EXPECT_EQ("TemplateError: " + std::string(error.what()), said) << name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::chat
