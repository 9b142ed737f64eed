#pragma once
// Guides for requests: what was asked for becomes an automaton over the model's tokens. Guides of
// the same text are shared and stay known for a while, with all that they have learnt, and so do
// refusals. Thread safe, and nobody waits while another's guide is made; the guides themselves
// belong to the thread that generates.
#include <list>
#include <map>
#include <memory>

#include "src/base/error.h"
#include "src/base/mutex.h"
#include "src/guide/guide.h"
#include "src/guide/json_schema.h"
#include "src/sampling/params.h"
#include "src/text/tokenizer.h"

namespace sluice::guide {

/// What has been asked of a GuideMaker, from its beginning.
struct GuideCounts {
  int64_t made = 0, refused = 0;  ///< by work
  double seconds = 0;             ///< of that work, of all threads
  int64_t known = 0;              ///< asked for again: guides and refusals
};

class GuideMaker {
 public:
  /// `tokenizer` outlives it; its tokens are read when the first guide is made. `end_tokens`: the
  /// model's end-of-text tokens.
  GuideMaker(const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens);

  /// Null when `spec` asks for none. Errors: kUser naming what can't be.
  std::shared_ptr<Guide> make(const sampling::GuideSpec& spec);

  GuideCounts counts() const {
    const MutexLock lock(mutex_);
    return counts_;
  }

  /// Where DRY is on: dry_breakers of what is given as texts and as tokens. A text stands for every
  /// token that holds it, and for the tokens that it is encoded as.
  void find_breakers(sampling::SamplingParams& params);

 private:
  std::shared_ptr<Guide> make_new(const sampling::GuideSpec& spec);
  /// Null: it has to be made. Waits while another thread makes the same. Errors: what it was
  /// refused with before.
  std::shared_ptr<Guide> known(const sampling::GuideSpec& spec, MutexLock& lock)
      SLUICE_REQUIRES(mutex_);
  void remember(const sampling::GuideSpec& spec, const Error& refusal) SLUICE_REQUIRES(mutex_);
  std::shared_ptr<const TokenTrie> tokens_with(const std::vector<std::string>& marks);
  std::vector<std::vector<int32_t>> tokens_of(const std::vector<std::string>& texts) const;

  static constexpr size_t kMostKept = 32, kMostBreakersKept = 4, kMostRefused = 32;

  const text::Tokenizer& tokenizer_;
  std::vector<int32_t> end_tokens_;
  Mutex tokens_mutex_;  // while a tree is made
  // By the special tokens that are in them.
  std::map<std::vector<int32_t>, std::shared_ptr<const TokenTrie>> tokens_
      SLUICE_GUARDED_BY(tokens_mutex_);
  mutable Mutex mutex_;
  Condition made_;
  GuideCounts counts_ SLUICE_GUARDED_BY(mutex_);
  std::list<sampling::GuideSpec> making_ SLUICE_GUARDED_BY(mutex_);  // by threads just now
  std::list<std::pair<sampling::GuideSpec, Error>> refused_
      SLUICE_GUARDED_BY(mutex_);  // newest first
  std::list<std::pair<sampling::GuideSpec, std::shared_ptr<Guide>>> kept_
      SLUICE_GUARDED_BY(mutex_);  // newest first
  // Of texts alone; those of the last few lists.
  std::map<std::vector<std::string>, std::shared_ptr<const sampling::DryBreakers>> breakers_
      SLUICE_GUARDED_BY(mutex_);
};

/// The network of what `spec` allows, behind the trigger of a kCalls. Where `spec` relaxes, what is
/// not held of a schema is added to `relaxed` (not null). Errors: kUser.
Grammar::Network network_of(const sampling::GuideSpec& spec, Relaxed* relaxed = nullptr);

}  // namespace sluice::guide
