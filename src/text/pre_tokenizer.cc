#include <fmt/format.h>

#include <memory>

#include "src/text/byte_level.h"
#include "src/text/regex.h"
#include "src/text/steps.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const Field& json) {
  const std::string name = json.at("behavior").text();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  json.at("behavior").refuse(fmt::format("split behavior \"{}\" is not supported", name));
}

struct Span {
  size_t begin, end;
  bool is_match;
};

std::vector<Span> all_spans(const Regex& regex, const std::string& text, bool invert) {
  std::vector<Span> spans;
  size_t at = 0;
  for (const auto& [begin, end] : regex.find_all(text, Regex::Empty::kKept)) {
    if (begin > at) spans.push_back({at, begin, invert});
    spans.push_back({begin, end, !invert});
    at = end;
  }
  if (at < text.size()) spans.push_back({at, text.size(), invert});
  return spans;
}

void add_pieces(const std::vector<Span>& spans, const std::string& text, Behavior behavior,
                std::vector<std::string>& out) {
  const auto piece = [&](const Span& span) {
    return text.substr(span.begin, span.end - span.begin);
  };
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Span& span : spans)
        if (!span.is_match) out.push_back(piece(span));
      return;
    case Behavior::kIsolated:
      for (const Span& span : spans) out.push_back(piece(span));
      return;
    case Behavior::kContiguous:
      for (size_t i = 0; i < spans.size(); ++i) {
        if (i > 0 && spans[i].is_match == spans[i - 1].is_match)
          out.back() += piece(spans[i]);
        else
          out.push_back(piece(spans[i]));
      }
      return;
    case Behavior::kMergedWithPrevious: {
      bool was_match = false;
      for (size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].is_match && !was_match && i > 0)
          out.back() += piece(spans[i]);
        else
          out.push_back(piece(spans[i]));
        was_match = spans[i].is_match;
      }
      return;
    }
    case Behavior::kMergedWithNext: {
      std::string held;
      for (size_t i = 0; i < spans.size(); ++i) {
        const bool joins = spans[i].is_match && i + 1 < spans.size() && !spans[i + 1].is_match;
        held += piece(spans[i]);
        if (joins) continue;
        out.push_back(std::move(held));
        held.clear();
      }
      return;
    }
  }
}

SplitStep split_by(std::shared_ptr<const Regex> regex, Behavior behavior, bool invert) {
  return [regex = std::move(regex), behavior, invert](std::vector<std::string>& pieces, bool) {
    std::vector<std::string> out;
    for (const std::string& text : pieces)
      add_pieces(all_spans(*regex, text, invert), text, behavior, out);
    std::erase(out, "");
    pieces = std::move(out);
  };
}

SplitStep split_by(const std::string& pattern, Behavior behavior) {
  return split_by(std::make_shared<const Regex>(pattern), behavior, false);
}

SplitStep make_sequence_splitter(const Field& list) {
  std::vector<SplitStep> steps;
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(make_pre_tokenizer(list.at(i)));
  return [steps = std::move(steps)](std::vector<std::string>& pieces, bool is_start) {
    for (const SplitStep& step : steps) step(pieces, is_start);
  };
}

std::string quote(const std::string& literal) {
  std::string pattern;
  for (char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))
      pattern += '\\';
    pattern += c;
  }
  return pattern;
}

SplitStep make_split(const Field& json) {
  const Field pattern = json.at("pattern");
  const std::string text =
      pattern.has("String") ? quote(pattern.at("String").text()) : pattern.at("Regex").text();
  if (text.empty()) pattern.refuse("is empty");
  return split_by(std::make_shared<const Regex>(text), parse_behavior(json),
                  json.boolean_or("invert", false));
}

SplitStep make_metaspace_splitter(const Field& json) {
  const std::string mark = json.text_or("replacement", "\xe2\x96\x81");
  std::string scheme = json.text_or("prepend_scheme",
                                    json.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    json.refuse(fmt::format("prepend_scheme \"{}\" is not supported", scheme));
  if (mark.empty() || character_bytes(mark) != mark.size())
    json.refuse("replacement is not one character");
  const bool splits = json.boolean_or("split", true);
  const auto regex = std::make_shared<const Regex>(quote(mark));
  return [mark, scheme, splits, regex](std::vector<std::string>& pieces, bool is_start) {
    std::vector<std::string> out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::string text;
      for (char c : pieces[i]) {
        if (c == ' ')
          text += mark;
        else
          text += c;
      }
      const bool prepends = scheme == "always" || (scheme == "first" && is_start && i == 0);
      if (prepends && !text.starts_with(mark)) text = mark + text;
      if (splits)
        add_pieces(all_spans(*regex, text, false), text, Behavior::kMergedWithNext, out);
      else
        out.push_back(std::move(text));
    }
    pieces = std::move(out);
  };
}
}  // namespace

SplitStep byte_level_split(const std::string& pattern, bool add_prefix_space) {
  const auto regex = pattern.empty() ? nullptr : std::make_shared<const Regex>(pattern);
  return [regex, add_prefix_space](std::vector<std::string>& pieces, bool) {
    std::vector<std::string> out;
    for (std::string& text : pieces) {
      if (add_prefix_space && !text.starts_with(' ')) text.insert(text.begin(), ' ');
      if (regex)
        add_pieces(all_spans(*regex, text, false), text, Behavior::kIsolated, out);
      else
        out.push_back(std::move(text));
    }
    for (std::string& piece : out) piece = bytes_to_characters(piece);
    pieces = std::move(out);
  };
}

SplitStep make_pre_tokenizer(const Field& json) {
  const std::string type = json.type();
  if (type == "Sequence") return make_sequence_splitter(json.at("pretokenizers"));
  if (type == "ByteLevel")
    return byte_level_split(json.boolean_or("use_regex", true) ? kGpt2Pattern : "",
                            json.boolean_or("add_prefix_space", true));
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace_splitter(json);
  if (type == "Whitespace")
    return split_by(std::make_shared<const Regex>(R"(\w+|[^\w\s]+)"), Behavior::kRemoved, true);
  if (type == "WhitespaceSplit") return split_by(R"(\s)", Behavior::kRemoved);
  if (type == "Digits")
    return split_by(R"(\p{N})", json.boolean_or("individual_digits", false)
                                    ? Behavior::kIsolated
                                    : Behavior::kContiguous);
  if (type == "Punctuation") {
    const Behavior behavior = json.has("behavior") ? parse_behavior(json) : Behavior::kIsolated;
    return split_by(R"([!-/:-@\[-`{-~]|\p{P})", behavior);
  }
  if (type == "BertPreTokenizer") {
    const SplitStep spaces = split_by(R"(\s)", Behavior::kRemoved);
    const SplitStep punctuation = split_by(R"([!-/:-@\[-`{-~]|\p{P})", Behavior::kIsolated);
    return [spaces, punctuation](std::vector<std::string>& pieces, bool is_start) {
      spaces(pieces, is_start);
      punctuation(pieces, is_start);
    };
  }
  json.refuse(fmt::format("pre-tokenizer type \"{}\" is not supported", type));
}

}  // namespace sluice::text
