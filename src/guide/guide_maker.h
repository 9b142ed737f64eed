#pragma once
// Guides for requests: what was asked for becomes an automaton over the model's tokens. Guides of
// the same text are shared and stay known for a while, with all that they have learnt. Thread safe;
// the guides themselves belong to the thread that generates.
#include <list>
#include <map>
#include <memory>

#include "src/base/mutex.h"
#include "src/guide/guide.h"
#include "src/sampling/params.h"
#include "src/text/tokenizer.h"

namespace sluice::guide {

class GuideMaker {
 public:
  /// `tokenizer` outlives it; its tokens are read when the first guide is made. `end_tokens`: the
  /// model's end-of-text tokens.
  GuideMaker(const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens);

  /// Null when `spec` asks for none. Errors: kUser naming what can't be.
  std::shared_ptr<Guide> make(const sampling::GuideSpec& spec);

 private:
  std::shared_ptr<Guide> make_new(const sampling::GuideSpec& spec) SLUICE_REQUIRES(mutex_);
  std::shared_ptr<const TokenTrie> tokens_with(const std::vector<std::string>& marks)
      SLUICE_REQUIRES(mutex_);

  static constexpr size_t kMostKept = 32;

  const text::Tokenizer& tokenizer_;
  std::vector<int32_t> end_tokens_;
  Mutex mutex_;
  // By the special tokens that are in them.
  std::map<std::vector<int32_t>, std::shared_ptr<const TokenTrie>> tokens_
      SLUICE_GUARDED_BY(mutex_);
  std::list<std::pair<sampling::GuideSpec, std::shared_ptr<Guide>>> kept_
      SLUICE_GUARDED_BY(mutex_);  // newest first
};

/// The network of what `spec` allows, behind the trigger of a kCalls. Errors: kUser.
Grammar::Network network_of(const sampling::GuideSpec& spec);

}  // namespace sluice::guide
