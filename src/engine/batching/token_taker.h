#pragma once
// What becomes of a pass's logits: scores go to the sink, tokens are chosen and join their
// sequences, beams get their candidates. One thread, the compute lane's, while a pass runs.
#include <functional>

#include "src/base/error.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

class TokenTaker final : public LogitsConsumer {
 public:
  /// `context_tokens`: no sequence becomes longer.
  explicit TokenTaker(int64_t context_tokens) : context_tokens_(context_tokens) {}

  /// Where the next pass's tokens go, and whether it holds prompt tokens. `check` is called once,
  /// before anything of the pass is told, and throws where its logits are worth nothing; may be
  /// empty.
  void begin_pass(GenerationSink& sink, bool is_prefill, std::function<void()> check);

  std::optional<TokenRequest> wanted_token(const MicroBatch& batch, size_t needed_index) override;
  void take_token(const MicroBatch& batch, size_t needed_index, sampling::Choice choice) override;
  void take_logits(const MicroBatch& batch, size_t needed_index,
                   std::span<const float> logits) override;
  bool wants_hidden(const MicroBatch& batch, size_t needed_index) override;
  void take_hidden(const MicroBatch& batch, size_t needed_index,
                   std::span<const float> row) override;

  /// Tokens chosen so far, and those of passes that held prompt tokens.
  int64_t tokens() const noexcept { return tokens_; }
  int64_t first_tokens() const noexcept { return first_tokens_; }

 private:
  void check_once();
  bool is_scored(const MicroBatch& batch, size_t needed_index) const;
  void take_beam(Sequence& sequence, std::span<const float> logits);
  void refuse(Sequence& sequence, const Error& error);
  void append(Sequence& sequence, const sampling::Choice& choice);
  void count() noexcept;

  int64_t context_tokens_;
  GenerationSink* sink_ = nullptr;
  bool is_prefill_ = false;
  std::function<void()> check_;  ///< until it was called
  int64_t tokens_ = 0;
  int64_t first_tokens_ = 0;
  sampling::Workspace workspace_;
};

}  // namespace sluice
