#include "tools/chat_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/app/model_tokenizer.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/chat/tool_format.h"
#include "tools/arguments.h"

namespace sluice::tools {

void ChatOptions::add_to(CLI::App& parser, const char* group, Has has) {
  parser.add_option("--chat-template", chat_template, "a Jinja file instead of the model's own")
      ->group(group);
  if (has == Has::kTemplateOnly) return;
  parser
      .add_option(
          "--generation-config", generation_config,
          "defaults of sampling: auto (the model's generation_config.json), none, or a file")
      ->capture_default_str()
      ->group(group);
}

void ChatOptions::add_reading_to(CLI::App& parser, const char* group) {
  std::vector<std::string> formats = chat::tool_format_names();
  formats.insert(formats.begin(), {"auto", "none"});
  parser
      .add_option("--tool-call-parser", tool_format,
                  "how the model writes calls of tools: auto (as its chat template has it), none, "
                  "or a form's name")
      ->capture_default_str()
      ->check(CLI::IsMember(formats))
      ->group(group);
  parser
      .add_option("--reasoning-parser", thoughts,
                  "what is between <think> and </think> is answered as reasoning_content: auto "
                  "(where the chat template speaks of it), think or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "think", "none"}))
      ->group(group);
}

serve::ChatStyle ChatOptions::style(const chat::ChatTemplate* chat) const {
  serve::ChatStyle out{chat};
  if (tool_format != "auto")
    out.tools = chat::find_tool_format(tool_format);
  else if (chat)
    out.tools = chat::tool_format_of(chat->source());
  out.splits_thoughts =
      thoughts == "think" || (thoughts == "auto" && chat && chat::has_thoughts(chat->source()));
  return out;
}

std::unique_ptr<chat::ChatTemplate> ChatOptions::load_template(
    const std::string& model, const text::Tokenizer& tokenizer) const {
  auto source = chat::find_chat_template(app::model_folder(model));
  if (!source && !text::Tokenizer::exists(app::model_folder(model)))
    if (const std::string config = app::gguf_tokenizer_config(model); !config.empty())
      source = chat::read_chat_template(config, model);
  if (!chat_template.empty()) {
    if (!source) source.emplace();
    source->text = read_text(chat_template, kMostSettingsBytes);
    source->tools_text.clear();
    source->origin = chat_template;
  }
  if (!source) return nullptr;
  if (source->bos_token.empty() && tokenizer.bos())
    source->bos_token = tokenizer.token_bytes(*tokenizer.bos());
  if (source->eos_token.empty() && tokenizer.eos())
    source->eos_token = tokenizer.token_bytes(*tokenizer.eos());
  return std::make_unique<chat::ChatTemplate>(std::move(*source));
}

sampling::SamplingParams ChatOptions::defaults(const std::string& model) const {
  sampling::SamplingParams out;
  if (generation_config == "none") return out;
  const bool is_auto = generation_config == "auto";
  const std::string path =
      is_auto ? (app::model_folder(model) / "generation_config.json").string() : generation_config;
  if (is_auto && !is_there(path)) return out;
  const auto json = nlohmann::json::parse(read_text(path, kMostSettingsBytes), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object())
    throw Error(ErrorKind::kFile, path + ": is no JSON object",
                "mend it, or leave it out with --generation-config none");
  const auto read = [&](const char* name, auto& field) {
    if (json.contains(name) && json[name].is_number())
      field = json[name].get<std::decay_t<decltype(field)>>();
  };
  read("temperature", out.temperature);
  read("top_k", out.top_k);
  read("top_p", out.top_p);
  read("min_p", out.min_p);
  read("typical_p", out.typical_p);
  read("repetition_penalty", out.repetition_penalty);
  try {
    sampling::validate(out);
  } catch (const Error& error) {
    throw error.with_context(path);
  }
  return out;
}

EngineFlags serving_flags(const EngineFlags& flags) {
  constexpr int64_t kDefaultContext = 4096;
  EngineFlags out = flags;
  out.prefers_memory = true;
  if (out.context == 0)
    out.context = std::min(open_model(flags)->shape().max_positions, kDefaultContext);
  return out;
}

void limit_pass(EngineOptions& options, int64_t tokens) {
  policy::Policy& policy = options.policy ? *options.policy : options.start_policy;
  if (policy.pass_tokens == 0) policy.pass_tokens = tokens;
}

std::string answers_key(const std::string& model_name, const BoundModel& model,
                        const chat::ChatTemplate* chat, const ChatOptions& options,
                        const EngineFlags& engine) {
  std::string key =
      fmt::format("{}|{}|{}", model_name, model.checkpoint().total_bytes(), model.config_text());
  // Another template makes other prompts of the same lines.
  if (!options.chat_template.empty()) key += "|" + chat->source().text;
  if (options.tool_format != "auto") key += "|tools " + options.tool_format;
  if (options.style(chat).splits_thoughts) key += "|thoughts";
  if (engine.batch_invariant) key += "|batch-invariant";
  return key;
}

std::string model_name(const std::string& path) {
  std::error_code gone;  // the folder that the command was started in
  auto whole = std::filesystem::absolute(path, gone).lexically_normal();
  if (gone) whole = path;
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace sluice::tools
