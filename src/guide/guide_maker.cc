#include "src/guide/guide_maker.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "src/base/error.h"
#include "src/guide/call_guide.h"
#include "src/guide/gbnf.h"
#include "src/guide/json_grammar.h"
#include "src/guide/json_schema.h"
#include "src/guide/regex.h"
#include "src/sampling/dry.h"

namespace sluice::guide {

using sampling::GuideKind;
using sampling::GuideSpec;

namespace {
constexpr size_t kMostRefusedBytes = 256 << 10;  // of a text that is remembered
}  // namespace

Grammar::Network network_of(const GuideSpec& spec, Relaxed* relaxed) {
  const ExprBudget budget(spec.text);
  Grammar grammar;
  switch (spec.kind) {
    case GuideKind::kJson: return grammar.build(JsonGrammar(grammar).any_object());
    case GuideKind::kJsonSchema:
      return grammar.build(schema_grammar(spec.text, grammar, spec.relaxes ? relaxed : nullptr));
    case GuideKind::kRegex: return grammar.build(parse_regex(spec.text));
    case GuideKind::kChoice: {
      std::vector<ExprPtr> ways;
      for (const std::string& choice : spec.choices) ways.push_back(literal(choice));
      return grammar.build(either(std::move(ways)));
    }
    case GuideKind::kGrammar: return grammar.build(parse_gbnf(spec.text, grammar));
    case GuideKind::kCalls: return call_guide(spec.text).network;
    case GuideKind::kNone: break;
  }
  SLUICE_ASSERT(false, "no guide was asked for");
}

GuideMaker::GuideMaker(const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens)
    : tokenizer_(tokenizer), end_tokens_(std::move(end_tokens)) {}

std::shared_ptr<Guide> GuideMaker::known(const GuideSpec& spec, MutexLock& lock) {
  const auto is_same = [&](const auto& one) { return one.first == spec; };
  for (;;) {
    const auto refused = std::find_if(refused_.begin(), refused_.end(), is_same);
    if (refused != refused_.end()) {
      refused_.splice(refused_.begin(), refused_, refused);
      throw Error(refused_.front().second);
    }
    const auto kept = std::find_if(kept_.begin(), kept_.end(), is_same);
    if (kept != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, kept);
      if (!kept_.front().second->is_worn()) return kept_.front().second;
      kept_.pop_front();
    }
    if (std::find(making_.begin(), making_.end(), spec) == making_.end()) return nullptr;
    made_.wait(lock);
  }
}

void GuideMaker::remember(const GuideSpec& spec, const Error& refusal) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (refusal.kind() != ErrorKind::kUser || bytes > kMostRefusedBytes) return;
  refused_.emplace_front(spec, refusal);
  if (refused_.size() > kMostRefused) refused_.pop_back();
}

std::shared_ptr<Guide> GuideMaker::make(const GuideSpec& spec) {
  if (spec.kind == GuideKind::kNone) return nullptr;
  std::list<GuideSpec>::iterator place;
  {
    MutexLock lock(mutex_);
    ++counts_.known;
    if (auto guide = known(spec, lock)) return guide;
    --counts_.known;
    place = making_.insert(making_.end(), spec);
  }
  const auto begun = std::chrono::steady_clock::now();
  const auto end = [&](const std::shared_ptr<Guide>& made, const Error* refusal) {
    const MutexLock lock(mutex_);
    counts_.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    ++(made ? counts_.made : counts_.refused);
    if (made) kept_.emplace_front(spec, made);
    if (kept_.size() > kMostKept) kept_.pop_back();
    if (refusal) remember(spec, *refusal);
    making_.erase(place);
    made_.notify_all();
  };
  try {
    auto guide = make_new(spec);
    end(guide, nullptr);
    return guide;
  } catch (const Error& error) {
    end(nullptr, &error);
    ::malloc_trim(0);  // what was too large does not stay with the process
    throw;
  } catch (...) {
    end(nullptr, nullptr);
    throw;
  }
}

std::shared_ptr<Guide> GuideMaker::make_new(const GuideSpec& spec) {
  if (spec.kind != GuideKind::kCalls) {
    Relaxed relaxed;
    Grammar::Network network = network_of(spec, &relaxed);
    return std::make_shared<Guide>(std::move(network), tokens_with({}), end_tokens_, Trigger{},
                                   std::move(relaxed));
  }
  CallGuide calls = call_guide(spec.text);
  return std::make_shared<Guide>(
      std::move(calls.network), tokens_with(calls.marks), end_tokens_,
      Trigger{calls.trigger, calls.repeats && !calls.trigger.empty(), calls.beginnings},
      std::move(calls.relaxed));
}

void GuideMaker::find_breakers(sampling::SamplingParams& params) {
  if (!(params.dry_multiplier > 0)) return;
  const auto& texts = params.dry_sequence_breakers;
  if (!params.dry_breaker_tokens.empty()) {
    auto sequences = tokens_of(texts);
    sequences.insert(sequences.end(), params.dry_breaker_tokens.begin(),
                     params.dry_breaker_tokens.end());
    params.dry_breakers = std::make_shared<const sampling::DryBreakers>(sequences);
    return;
  }
  const MutexLock lock(mutex_);
  auto known = breakers_.find(texts);
  if (known == breakers_.end()) {
    if (breakers_.size() >= kMostBreakersKept) breakers_.clear();
    auto found = std::make_shared<const sampling::DryBreakers>(tokens_of(texts));
    known = breakers_.emplace(texts, std::move(found)).first;
  }
  params.dry_breakers = known->second;
}

std::vector<std::vector<int32_t>> GuideMaker::tokens_of(
    const std::vector<std::string>& texts) const {
  std::vector<std::vector<int32_t>> out;
  for (int32_t token = 0; !texts.empty() && token < tokenizer_.vocab_size(); ++token) {
    const std::string bytes = tokenizer_.token_bytes(token);
    if (std::any_of(texts.begin(), texts.end(),
                    [&](const std::string& text) { return bytes.find(text) != std::string::npos; }))
      out.push_back({token});
  }
  for (const std::string& text : texts) {
    auto encoded = tokenizer_.encode(text, text::AddSpecial::kNo);
    if (encoded.size() > 1) out.push_back(std::move(encoded));
  }
  return out;
}

// The vocabulary, with the special tokens that `marks` hold.
std::shared_ptr<const TokenTrie> GuideMaker::tokens_with(const std::vector<std::string>& marks) {
  std::vector<int32_t> special;
  for (int32_t token = 0; !marks.empty() && token < tokenizer_.vocab_size(); ++token) {
    if (!tokenizer_.is_special(token)) continue;
    const std::string bytes = tokenizer_.token_bytes(token);
    if (!bytes.empty() && std::any_of(marks.begin(), marks.end(), [&](const std::string& mark) {
          return mark.find(bytes) != std::string::npos;
        }))
      special.push_back(token);
  }
  const MutexLock lock(tokens_mutex_);
  auto& tokens = tokens_[special];
  if (!tokens) tokens = std::make_shared<const TokenTrie>(tokenizer_, special);
  return tokens;
}

}  // namespace sluice::guide
