#pragma once
// One chat answer as a row of blocks (thoughts, text, calls of tools), each opened, grown and
// closed in turn: what the interfaces with typed streams have in common. One thread.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/serve/answer_form.h"

namespace sluice::serve {

/// A part of an answer.
struct Block {
  enum class Kind : uint8_t { kText, kThought, kCall };
  Kind kind = Kind::kText;
  std::string text;  ///< of a call: its arguments, which are JSON
  std::string name;  ///< of a call: the function's
  std::string id;    ///< of a call
};

/// Subclasses write what happens to the blocks.
class BlockAnswer : public AnswerForm {
 public:
  BlockAnswer(AnswerShape shape, bool streams);

  void add(const Event& event) final;
  std::string stream_of(const Event& event) final;
  std::string stream_end() final;
  std::string stream_error(const ApiError& error) final;
  bool is_complete() const noexcept final { return is_complete_; }

 protected:
  /// Each returns what it is worth in the stream; may be empty. begun() comes first, once; then the
  /// blocks one after the other; then ended() or failed().
  virtual std::string begun() = 0;
  virtual std::string opened(size_t block) = 0;
  virtual std::string grown(size_t block, const std::string& more) = 0;
  /// The last one: when the finish reason is known.
  virtual std::string closed(size_t block) = 0;
  virtual std::string ended() = 0;
  virtual std::string failed(const ApiError& error) = 0;

  const AnswerShape& shape() const noexcept { return shape_; }
  const std::vector<Block>& blocks() const noexcept { return blocks_; }
  /// "stop", "tool_calls", "length", "cancelled"; empty while it is under way.
  const std::string& finish_reason() const noexcept { return finish_reason_; }
  /// The stop string that ended it; empty: none did.
  const std::string& stop_string() const noexcept { return stop_string_; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(shape_.prompt_ids.front().size()); }
  int64_t cached_tokens() const noexcept { return cached_tokens_; }
  int64_t output_tokens() const noexcept { return output_tokens_; }
  int64_t thought_tokens() const noexcept { return thought_tokens_; }
  /// When it was asked for, when the engine took it, and when its first text came.
  http::Clock::time_point made_at() const noexcept { return made_at_; }
  std::optional<http::Clock::time_point> started_at() const noexcept { return started_at_; }
  std::optional<http::Clock::time_point> first_text_at() const noexcept { return first_text_at_; }
  /// Whether the answer ended within this block.
  bool is_cut(size_t block) const {
    return block + 1 == blocks_.size() && finish_reason_ != "stop" &&
           finish_reason_ != "tool_calls";
  }
  /// The tokens that have come since it was last asked, where log-probabilities are told.
  std::vector<sampling::Choice> take_choices() { return std::exchange(choices_, {}); }
  /// Of a call; nothing where it was cut short.
  std::optional<nlohmann::ordered_json> arguments_of(size_t block) const;

 private:
  struct Step {
    enum class Kind : uint8_t { kOpened, kGrown, kClosed } kind;
    size_t block;
    size_t from = 0, to = 0;  // of the block's text
  };
  void take(std::vector<chat::MessagePart> parts);
  void open(Block block);
  void note(Step step) {
    if (streams_) steps_.push_back(step);
  }
  std::string begun_once();
  std::string written();

  const AnswerShape shape_;
  const bool streams_;
  chat::MessageReader reader_;
  std::vector<Block> blocks_;
  std::vector<Step> steps_;  // not written yet
  std::vector<sampling::Choice> choices_;
  std::string finish_reason_, stop_string_;
  int64_t cached_tokens_ = 0, output_tokens_ = 0, thought_tokens_ = 0, undecided_tokens_ = 0;
  const http::Clock::time_point made_at_ = http::Clock::now();
  std::optional<http::Clock::time_point> started_at_, first_text_at_;
  bool has_begun_ = false, is_complete_ = false;
};

}  // namespace sluice::serve
