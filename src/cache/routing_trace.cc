#include "src/cache/routing_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>

#include "src/base/error.h"
#include "src/base/printable.h"

namespace sluice {

namespace {
constexpr std::string_view kFirstLine = "# route_trace v1";
constexpr int64_t kMostNumber = int64_t{1} << 53;
constexpr size_t kMostColumns = 64;

// Columns that are read. The last may be missing.
enum Column : uint8_t { kTurn, kPhase, kStep, kLayer, kSlot, kExpert, kPass, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"turn", "phase",  "step", "layer",
                                                           "slot", "expert", "pass"};

// The next piece of `text` up to `mark`, which is dropped.
std::string_view cut(std::string_view& text, char mark) {
  const size_t end = std::min(text.find(mark), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size() || value < 0 ||
      value > kMostNumber)
    return std::nullopt;
  return value;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  RoutingTrace read() {
    if (next() != kFirstLine)
      refuse("does not begin with \"# route_trace v1\"",
             "give a file that sluice run --record-routing wrote, or another in that format");
    while (!rest_.empty() && rest_.front() == '#') comment(next().substr(1));
    if (trace_.layers.empty() || trace_.experts == 0)
      refuse("no line before here says model=... n_layer=... n_expert=...", "");
    if (rest_.empty()) refuse("ends before the names of its columns", "");
    columns(next());
    while (!rest_.empty()) token_line();
    if (count_ == 0) refuse("ends without a token", "");
    if (trace_.chosen == 0)
      for (const RoutingTrace::Layer& layer : trace_.layers)
        for (const RoutingTrace::Token& token : layer.tokens)
          trace_.chosen = std::max<int64_t>(trace_.chosen, token.chosen);
    return std::move(trace_);
  }

 private:
  std::string_view next() {
    ++line_;
    const bool is_ended = rest_.find('\n') != std::string_view::npos;
    std::string_view line = cut(rest_, '\n');
    if (!is_ended) refuse("is cut off", "leave the last line out if the rest is of use");
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
  }

  [[noreturn]] void refuse(const std::string& problem, const std::string& mend) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: line {} {}", name_, line_, problem), mend);
  }

  int64_t bounded(std::string_view key, std::string_view value, int64_t least, int64_t most) const {
    const auto number = number_of(value);
    if (!number || *number < least || *number > most)
      refuse(fmt::format("has {}={}: a number from {} to {} belongs there", key, printable(value),
                         least, most),
             "");
    return *number;
  }

  // "key=value key=value": of the model, or of a layer.
  void comment(std::string_view text) {
    std::optional<int64_t> layer;
    while (!text.empty()) {
      std::string_view value = cut(text, ' ');
      if (value.find('=') == std::string_view::npos) continue;
      const std::string_view key = cut(value, '=');
      if (key == "model") trace_.model = value;
      if (key == "arch") trace_.family = value;
      if (key == "n_layer")
        trace_.layers.resize(
            static_cast<size_t>(bounded(key, value, 1, RoutingTrace::kMostLayers)));
      if (key == "n_expert") trace_.experts = bounded(key, value, 1, RoutingTrace::kMostExperts);
      if (key == "n_expert_used")
        trace_.chosen = bounded(key, value, 1, RoutingTrace::kMostExperts);
      if (key == "layer") layer = bounded(key, value, 0, std::ssize(trace_.layers) - 1);
      if (key == "expert_bytes" && layer)
        trace_.layers[static_cast<size_t>(*layer)].expert_bytes =
            bounded(key, value, 0, kMostNumber);
    }
  }

  void columns(std::string_view line) {
    places_.fill(-1);
    width_ = 0;
    while (!line.empty()) {
      const std::string_view name = cut(line, ',');
      const auto* known = std::find(kNames.begin(), kNames.end(), name);
      if (known != kNames.end()) {
        int& place = places_[static_cast<size_t>(known - kNames.begin())];
        if (place >= 0) refuse(fmt::format("names the column {} twice", name), "");
        place = static_cast<int>(width_);
      }
      if (++width_ > kMostColumns) refuse("names more than 64 columns", "");
    }
    for (size_t i = 0; i < kColumns; ++i)
      if (places_[i] < 0 && i != kPass)
        refuse(fmt::format("has no column {}: it names turn,phase,step,layer,slot,expert and more",
                           kNames[i]),
               "");
  }

  void token_line() {
    std::string_view line = next();
    std::array<std::string_view, kMostColumns> fields;
    size_t count = 0;
    for (; !line.empty() && count < width_; ++count) fields[count] = cut(line, ',');
    if (count < width_ || !line.empty())
      refuse(fmt::format("has not {} fields as the columns have", width_), "");
    std::array<int64_t, kColumns> values{};
    for (size_t i = 0; i < kColumns; ++i) {
      if (places_[i] < 0) continue;
      const std::string_view field = fields[static_cast<size_t>(places_[i])];
      const auto number = number_of(field);
      if (!number)
        refuse(fmt::format("has \"{}\" as {}: a number from 0 belongs there", printable(field),
                           kNames[i]),
               "");
      values[i] = *number;
    }
    take(values);
  }

  void take(const std::array<int64_t, kColumns>& values) {
    if (values[kLayer] >= std::ssize(trace_.layers))
      refuse(fmt::format("speaks of layer {} of {}", values[kLayer], trace_.layers.size()), "");
    if (values[kExpert] >= trace_.experts)
      refuse(fmt::format("speaks of expert {} of {}", values[kExpert], trace_.experts), "");
    if (values[kPhase] > 1)
      refuse(fmt::format("has phase {}: 0 is a prompt's, 1 a token after it", values[kPhase]), "");
    RoutingTrace::Layer& layer = trace_.layers[static_cast<size_t>(values[kLayer])];
    const auto expert = static_cast<int32_t>(values[kExpert]);
    if (values[kSlot] == 0) {
      begin_token(layer, values);
    } else if (!continues(values)) {
      refuse(fmt::format("is choice {} of a token whose choice before that is not the line above",
                         values[kSlot]),
             "keep the lines of a token and layer together, in the order of their slots");
    }
    RoutingTrace::Token& token = layer.tokens.back();
    const auto chosen = layer.experts.begin() + static_cast<std::ptrdiff_t>(token.first);
    if (std::find(chosen, layer.experts.end(), expert) != layer.experts.end())
      refuse(fmt::format("chooses expert {} once more for the same token", expert), "");
    layer.experts.push_back(expert);
    ++token.chosen;
    before_ = values;
    ++count_;
  }

  bool continues(const std::array<int64_t, kColumns>& values) const {
    if (count_ == 0 || values[kSlot] != before_[kSlot] + 1) return false;
    for (const Column column : {kTurn, kPhase, kStep, kLayer, kPass})
      if (values[column] != before_[column]) return false;
    return true;
  }

  void begin_token(RoutingTrace::Layer& layer, const std::array<int64_t, kColumns>& values) {
    RoutingTrace::Token token;
    token.sequence = values[kTurn];
    token.position = values[kStep];
    token.is_prompt = values[kPhase] == 0;
    token.first = layer.experts.size();
    const bool is_first = layer.tokens.empty();
    const int64_t latest = is_first ? 0 : layer.tokens.back().pass;
    if (places_[kPass] >= 0) {
      token.pass = values[kPass];
      if (token.pass < latest)
        refuse(fmt::format("is of pass {}, after pass {} of its layer", token.pass, latest), "");
    } else {
      const bool is_same = !is_first && token.is_prompt && layer.tokens.back().is_prompt &&
                           layer.tokens.back().sequence == token.sequence;
      token.pass = is_first ? 0 : latest + (is_same ? 0 : 1);
    }
    layer.tokens.push_back(token);
  }

  std::string_view rest_;
  const std::string& name_;
  int64_t line_ = 0;
  std::array<int, kColumns> places_{};  ///< [column]: field of a line; -1: none
  size_t width_ = 0;                    ///< fields of a line
  std::array<int64_t, kColumns> before_{};
  int64_t count_ = 0;  ///< lines of tokens
  RoutingTrace trace_;
};

// A value of a line of keys and values has no blanks.
std::string word(const std::string& text) {
  std::string out = text.empty() ? "?" : text;
  for (char& c : out)
    if (static_cast<unsigned char>(c) <= ' ') c = '_';
  return out;
}
}  // namespace

RoutingTrace parse_routing_trace(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

std::string routing_trace_head(const RoutingTrace& trace, const std::vector<int64_t>& dense_bytes) {
  std::string out = fmt::format("{}\n# model={} arch={} n_layer={} n_expert={} n_expert_used={}\n",
                                kFirstLine, word(trace.model), word(trace.family),
                                trace.layers.size(), trace.experts, trace.chosen);
  for (size_t i = 0; i < trace.layers.size(); ++i)
    if (trace.layers[i].expert_bytes > 0)
      out += fmt::format("# layer={} expert_bytes={} dense_bytes={}\n", i,
                         trace.layers[i].expert_bytes, dense_bytes[i]);
  return out + "turn,phase,step,layer,slot,expert,weight,pass\n";
}

void append_line(std::string& text, const RoutingLine& line) {
  fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{:.6g},{}\n", line.token.sequence,
                 line.token.is_prompt ? 0 : 1, line.token.position, line.layer, line.slot,
                 line.expert, line.weight, line.token.pass);
}

}  // namespace sluice
