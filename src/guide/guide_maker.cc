#include "src/guide/guide_maker.h"

#include <algorithm>

#include "src/base/error.h"
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
    case GuideKind::kNone: break;
  }
  SLUICE_ASSERT(false, "no guide was asked for");
}

GuideMaker::GuideMaker(const text::Tokenizer& tokenizer, std::vector<int32_t> end_tokens)
    : tokenizer_(tokenizer), end_tokens_(std::move(end_tokens)) {}

std::shared_ptr<Guide> GuideMaker::make(const GuideSpec& spec) {
  if (spec.kind == GuideKind::kNone) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto known =
      std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == spec; });
  if (known != kept_.end() && known->second->is_worn()) {
    kept_.erase(known);
  } else if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return kept_.front().second;
  }
  Grammar::Network network = network_of(spec);
  if (!tokens_) tokens_ = std::make_shared<const TokenTrie>(tokenizer_);
  auto guide = std::make_shared<Guide>(std::move(network), tokens_, end_tokens_);
  kept_.emplace_front(spec, guide);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return guide;
}

}  // namespace sluice::guide
