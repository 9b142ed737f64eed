#include "src/serve/block_answer.h"

#include <utility>

#include "src/jobs/bounded_json.h"
#include "src/jobs/request_fields.h"
#include "src/serve/message_json.h"

namespace sluice::serve {

namespace {
constexpr int kMostCallDepth = 64;  // of a call's arguments
}

BlockAnswer::BlockAnswer(AnswerShape shape, bool streams)
    : shape_(std::move(shape)), streams_(streams), reader_(shape_.form) {}

void BlockAnswer::add(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kStarted:
      cached_tokens_ = event.cached_tokens;
      started_at_ = http::Clock::now();
      break;
    case Event::Kind::kPrompt: break;
    case Event::Kind::kText: {
      first_text_at_ = first_text_at_.value_or(http::Clock::now());
      take(reader_.add(event.text));
      if (shape_.has_logprobs)
        choices_.insert(choices_.end(), event.choices.begin(), event.choices.end());
      // Up to the token that ended them; what is not decided may be their beginning.
      if (blocks_.empty() || blocks_.back().kind == Block::Kind::kThought)
        undecided_tokens_ += static_cast<int64_t>(event.choices.size());
      if (!blocks_.empty() && blocks_.front().kind == Block::Kind::kThought)
        thought_tokens_ += std::exchange(undecided_tokens_, 0);
      break;
    }
    default:
      take(reader_.finish());
      finish_reason_ = event.finish_reason;
      stop_string_ = event.stop_string;
      output_tokens_ = event.output_tokens;
      if (blocks_.empty()) open({});  // an answer without a text has an empty one
      for (const Block& block : blocks_)
        if (block.kind == Block::Kind::kCall && finish_reason_ == "stop")
          finish_reason_ = "tool_calls";
      note({Step::Kind::kClosed, blocks_.size() - 1});
      is_complete_ = true;
  }
}

void BlockAnswer::open(Block block) {
  if (!blocks_.empty()) note({Step::Kind::kClosed, blocks_.size() - 1});
  blocks_.push_back(std::move(block));
  note({Step::Kind::kOpened, blocks_.size() - 1});
}

void BlockAnswer::take(std::vector<chat::MessagePart> parts) {
  using Kind = chat::MessagePart::Kind;
  for (chat::MessagePart& part : parts) {
    if (part.kind == Kind::kCall) {
      std::string id = call_id(shape_.form, part);
      open({Block::Kind::kCall, {}, std::move(part.text), std::move(id)});
      continue;
    }
    const Block::Kind kind = part.kind == Kind::kThought ? Block::Kind::kThought
                             : part.kind == Kind::kText  ? Block::Kind::kText
                                                         : Block::Kind::kCall;
    if (part.text.empty()) continue;
    if (blocks_.empty() || blocks_.back().kind != kind) open({kind, {}, {}, {}});
    std::string& text = blocks_.back().text;
    const size_t from = text.size();
    text += part.text;
    note({Step::Kind::kGrown, blocks_.size() - 1, from, text.size()});
  }
}

std::string BlockAnswer::begun_once() {
  return std::exchange(has_begun_, true) ? std::string() : begun();
}

std::string BlockAnswer::written() {
  std::string out;
  for (const Step& step : std::exchange(steps_, {})) {
    switch (step.kind) {
      case Step::Kind::kOpened: out += opened(step.block); break;
      case Step::Kind::kGrown:
        out += grown(step.block, blocks_[step.block].text.substr(step.from, step.to - step.from));
        break;
      case Step::Kind::kClosed: out += closed(step.block); break;
    }
  }
  return out;
}

std::string BlockAnswer::stream_of(const Event&) {
  std::string out = begun_once();
  return out + written();
}

// One after the other: events are numbered as they are made.
std::string BlockAnswer::stream_end() {
  std::string out = begun_once();
  out += ended();
  return out;
}

std::string BlockAnswer::stream_error(const ApiError& error) {
  std::string out = begun_once();
  out += failed(error);
  return out;
}

std::optional<nlohmann::ordered_json> BlockAnswer::arguments_of(size_t block) const {
  const std::string& text = blocks_[block].text;
  if (text.empty() && !is_cut(block)) return nlohmann::ordered_json::object();
  try {
    auto arguments = jobs::parse_bounded<nlohmann::ordered_json>(text, kMostCallDepth, "arguments");
    if (arguments.is_object()) return arguments;
  } catch (const jobs::Refusal&) {
    // Cut short.
  }
  return std::nullopt;
}

}  // namespace sluice::serve
