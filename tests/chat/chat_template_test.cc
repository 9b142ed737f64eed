#include "src/chat/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice::chat {
namespace {

using nlohmann::ordered_json;

class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "sluice_chat_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const ordered_json kMessages = ordered_json::parse(R"([{"role": "user", "content": "hi"}])");

TEST(ChatTemplate, IsFoundInTheConfigOrBesideIt) {
  const Folder folder;
  EXPECT_FALSE(find_chat_template(folder.path()));
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
                   "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  EXPECT_EQ(
      ChatTemplate(*find_chat_template(folder.path())).render(kMessages, nullptr, true, nullptr),
      "<s>hi</s>");
  folder.write("chat_template.jinja",
               "{{ bos_token }}file{% if add_generation_prompt %}!{% endif %}{{ depth }}");
  const ChatTemplate own(*find_chat_template(folder.path()));
  EXPECT_EQ(own.render(kMessages, nullptr, true, {{"depth", 3}}), "<s>file!3");
  EXPECT_EQ(own.render(kMessages, nullptr, false, nullptr), "<s>file");
}

TEST(ChatTemplate, RequestsWithToolsTakeTheirOwn) {
  const Folder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "plain"},
                                     {"name": "tool_use", "template": "{{ tools[0].name }}"}]})");
  const ChatTemplate both(*find_chat_template(folder.path()));
  EXPECT_EQ(both.render(kMessages, nullptr, true, nullptr), "plain");
  EXPECT_EQ(both.render(kMessages, ordered_json::array({{{"name", "search"}}}), true, nullptr),
            "search");
}

TEST(ChatTemplate, ErrorsSayWhoseFaultItIs) {
  const auto kind_of = [](const std::string& text) {
    ChatTemplateSource source;
    source.text = text;
    source.origin = "here";
    try {
      ChatTemplate(source).render(kMessages, nullptr, true, nullptr);
    } catch (const Error& error) {
      return error.text().find("chat template") == std::string::npos ? ErrorKind::kInternal
                                                                     : error.kind();
    }
    return ErrorKind::kCancelled;
  };
  EXPECT_EQ(kind_of("{{ raise_exception('roles must alternate') }}"), ErrorKind::kUser);
  EXPECT_EQ(kind_of("{{ messages.nothing.more }}"), ErrorKind::kUser);
  EXPECT_EQ(kind_of("{% if %}"), ErrorKind::kFile);
  const Folder folder;
  folder.write("tokenizer_config.json", "[]");
  EXPECT_THROW(find_chat_template(folder.path()), Error);
}

// As Seed-OSS's template finds the interval of a thinking budget.
TEST(ChatTemplate, IntegerKeysAreNumbers) {
  const auto render = [](const std::string& text) {
    return ChatTemplate({.text = text}).render(kMessages, nullptr, true, {{"budget", 700}});
  };
  const std::string table = "{% set t = {512: 128, 0: 0, 16384: 1024, 1024: 256} %}";
  EXPECT_EQ(render(table + "{% for k, v in t | dictsort %}{{ k }}:{{ v }} {% endfor %}"),
            "0:0 512:128 1024:256 16384:1024 ");
  EXPECT_EQ(render(table + "{% set ns = namespace(i=none) %}{% for k, v in t | dictsort %}"
                           "{% if ns.i is none and budget <= k %}{% set ns.i = v %}{% endif %}"
                           "{% endfor %}{{ ns.i }}"),
            "256");
  EXPECT_EQ(render(table +
                   "{{ t[512] }} {{ 512 in t }} {{ t }} {% for k in t %}{{ k + 1 }} {% endfor %}"),
            "128 True {512: 128, 0: 0, 16384: 1024, 1024: 256} 513 1 16385 1025 ");
  EXPECT_EQ(render("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{% endfor %}"), "ba");
}

}  // namespace
}  // namespace sluice::chat
