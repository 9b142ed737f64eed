#include "src/guide/guide_maker.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/guide/call_guide.h"
#include "src/guide/json_grammar.h"
#include "src/guide/json_schema.h"
#include "src/guide/regex.h"

namespace sluice::guide {

using sampling::GuideKind;
using sampling::GuideSpec;

Grammar::Network network_of(const GuideSpec& spec) {
  Grammar grammar;
  switch (spec.kind) {
    case GuideKind::kJson: return grammar.build(JsonGrammar(grammar).any_object());
    case GuideKind::kJsonSchema: return grammar.build(schema_grammar(spec.text, grammar));
    case GuideKind::kRegex: return grammar.build(parse_regex(spec.text));
    case GuideKind::kChoice: {
      std::vector<ExprPtr> ways;
      for (const std::string& choice : spec.choices) ways.push_back(literal(choice));
      return grammar.build(either(std::move(ways)));
    }
    case GuideKind::kCalls: return call_guide(spec.text).network;
    case GuideKind::kNone: break;
  }
  SLUICE_ASSERT(false, "no guide was asked for");
}

GuideMaker::GuideMaker(const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens)
    : tokenizer_(tokenizer), end_tokens_(std::move(end_tokens)) {}

std::shared_ptr<Guide> GuideMaker::make(const GuideSpec& spec) {
  if (spec.kind == GuideKind::kNone) return nullptr;
  const MutexLock lock(mutex_);
  const auto known =
      std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == spec; });
  if (known != kept_.end() && known->second->is_worn()) {
    kept_.erase(known);
  } else if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return kept_.front().second;
  }
  auto guide = make_new(spec);
  kept_.emplace_front(spec, guide);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return guide;
}

std::shared_ptr<Guide> GuideMaker::make_new(const GuideSpec& spec) {
  if (spec.kind != GuideKind::kCalls) {
    Grammar::Network network = network_of(spec);
    return std::make_shared<Guide>(std::move(network), tokens_with({}), end_tokens_);
  }
  CallGuide calls = call_guide(spec.text);
  return std::make_shared<Guide>(
      std::move(calls.network), tokens_with(calls.marks), end_tokens_,
      Trigger{calls.trigger, calls.repeats && !calls.trigger.empty(), calls.beginnings});
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
  auto& tokens = tokens_[special];
  if (!tokens) tokens = std::make_shared<const TokenTrie>(tokenizer_, special);
  return tokens;
}

}  // namespace sluice::guide
