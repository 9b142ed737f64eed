#include <sluice/chat.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/app/model_tokenizer.h"
#include "src/base/error.h"
#include "src/chat/tool_format.h"
#include "src/serve/chat_prompt.h"
#include "src/serve/message_json.h"

namespace sluice {

struct Chat::Impl {
  Impl(chat::ChatTemplateSource source, std::shared_ptr<const text::Tokenizer> of)
      : model_template(std::move(source)),
        tokenizer(std::move(of)),
        tools(chat::tool_format_of(model_template.source())),
        splits_thoughts(chat::has_thoughts(model_template.source())) {}
  chat::ChatTemplate model_template;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  const chat::ToolFormat* tools;
  bool splits_thoughts;
};

struct ChatPrompt::Impl {
  serve::ChatPrompt prompt;
};

struct ChatReader::Impl {
  chat::MessageForm form;
  chat::MessageReader reader{form};
};

namespace {
std::vector<ChatPart> parts_of(std::vector<chat::MessagePart> parts,
                               const chat::MessageForm& form) {
  std::vector<ChatPart> out;
  for (chat::MessagePart& part : parts) {
    ChatPart& one = out.emplace_back();
    if (part.kind == chat::MessagePart::Kind::kCall) one.id = serve::call_id(form, part);
    one.text = std::move(part.text);
    one.call = part.call;
    switch (part.kind) {
      case chat::MessagePart::Kind::kText: one.kind = ChatPart::Kind::kText; break;
      case chat::MessagePart::Kind::kThought: one.kind = ChatPart::Kind::kThought; break;
      case chat::MessagePart::Kind::kCall: one.kind = ChatPart::Kind::kCall; break;
      case chat::MessagePart::Kind::kArguments: one.kind = ChatPart::Kind::kArguments; break;
    }
  }
  return out;
}
}  // namespace

ChatReader::ChatReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatReader::ChatReader(ChatReader&&) noexcept = default;
ChatReader::~ChatReader() = default;

std::vector<ChatPart> ChatReader::add(std::string_view text) {
  return parts_of(impl_->reader.add(text), impl_->form);
}
std::vector<ChatPart> ChatReader::finish() { return parts_of(impl_->reader.finish(), impl_->form); }

const std::string& ChatPrompt::text() const { return impl_->prompt.text; }
Guide ChatPrompt::guide() const {
  const sampling::GuideSpec& of = impl_->prompt.guide;
  if (of.kind == sampling::GuideKind::kNone) return {};
  return {Guide::Kind::kCalls, of.text, of.choices};
}
bool ChatPrompt::keeps_special() const { return impl_->prompt.keeps_special; }
ChatReader ChatPrompt::reader() const {
  return ChatReader(std::make_unique<ChatReader::Impl>(ChatReader::Impl{impl_->prompt.form}));
}

std::optional<Chat> Chat::find(const std::filesystem::path& model, const Tokenizer& tokenizer,
                               const std::string& template_text) {
  const std::filesystem::path folder = app::model_folder(model);
  auto source = chat::find_chat_template(folder);
  if (!source && !text::Tokenizer::exists(folder))
    if (const std::string config = app::gguf_tokenizer_config(model); !config.empty())
      source = chat::read_chat_template(config, model.string());
  if (!template_text.empty()) {
    if (!source) source.emplace();
    source->text = template_text;
    source->tools_text.clear();
    source->origin = "chat_template";
  }
  if (!source) return std::nullopt;
  const text::Tokenizer& of = *tokenizer.impl_;
  if (source->bos_token.empty() && of.bos()) source->bos_token = of.token_bytes(*of.bos());
  if (source->eos_token.empty() && of.eos()) source->eos_token = of.token_bytes(*of.eos());
  return Chat(std::make_shared<Impl>(std::move(*source), tokenizer.impl_));
}

ChatPrompt Chat::prompt(std::string_view request, bool is_guided) const {
  try {
    serve::ChatRequest asked = serve::parse_chat(request, {}, std::numeric_limits<int32_t>::max());
    if (is_guided) asked.params.guide.kind = sampling::GuideKind::kJson;
    if (is_guided && !asked.callable.empty())
      throw Error(ErrorKind::kUser, "guided output leaves no room for calls of tools",
                  "leave out one of them, or give tool_choice=\"none\"");
    return ChatPrompt(std::make_shared<ChatPrompt::Impl>(ChatPrompt::Impl{serve::chat_prompt(
        asked, &impl_->model_template, *impl_->tokenizer, impl_->tools, impl_->splits_thoughts)}));
  } catch (const serve::ApiError& error) {
    throw Error(ErrorKind::kUser, error.message);
  }
}

}  // namespace sluice
