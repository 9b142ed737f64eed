#include "policy/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(std::string_view origin, const std::string& what,
                         const std::string& mend) {
  throw Error(ErrorKind::kUser, fmt::format("policy {}: {}", origin, what), mend);
}

TierShares parse_shares(const Json& value, std::string_view key, std::string_view origin) {
  if (!value.is_object())
    refuse(origin, fmt::format("\"{}\" is not an object", key),
           "write {\"device\": 0.4, \"disk\": 0.6}");
  TierShares shares{0, 0, 0};
  for (const auto& [tier, share] : value.items()) {
    double* target = tier == "device" ? &shares.device
                     : tier == "host" ? &shares.host
                     : tier == "disk" ? &shares.disk
                                      : nullptr;
    if (!target)
      refuse(origin, fmt::format("\"{}.{}\" is not a tier", key, tier),
             "tiers are device, host and disk");
    if (!share.is_number())
      refuse(origin, fmt::format("\"{}.{}\" is not a number", key, tier),
             "write a share between 0 and 1");
    *target = share.get<double>();
  }
  return shares;
}

AttentionPlace parse_attention(const Json& value, std::string_view key, std::string_view origin) {
  if (value == "device") return AttentionPlace::kDevice;
  if (value == "host") return AttentionPlace::kHost;
  refuse(origin, fmt::format("\"{}\" is {}", key, value.dump()), "write \"device\" or \"host\"");
}

int64_t parse_count(const Json& value, std::string_view key, std::string_view origin) {
  if (!value.is_number_integer())
    refuse(origin, fmt::format("\"{}\" is not a whole number", key), "write a whole number");
  return value.get<int64_t>();
}

double parse_inplace(const Json& value, std::string_view key, std::string_view origin) {
  if (!value.is_number())
    refuse(origin, fmt::format("\"{}\" is not a number", key),
           "write a share between 0 and weights.host");
  return value.get<double>();
}

// What an entry leaves out is as in `smaller`, the class before it.
PassExecution parse_execution(const Json& value, PassExecution smaller, const std::string& name,
                              std::string_view origin) {
  if (!value.is_object())
    refuse(origin, fmt::format("\"{}\" is not an object", name),
           "write {\"from_tokens\": 64, \"inplace_host_fraction\": 0}");
  if (!value.contains("from_tokens"))
    refuse(origin, fmt::format("\"{}\" has no \"from_tokens\"", name),
           "write the least tokens of such a pass");
  for (const auto& [key, field] : value.items()) {
    const std::string where = fmt::format("{}.{}", name, key);
    if (key == "from_tokens")
      smaller.from_tokens = parse_count(field, where, origin);
    else if (key == "micro_batch_tokens")
      smaller.micro_batch_tokens = parse_count(field, where, origin);
    else if (key == "inplace_host_fraction")
      smaller.inplace_host_fraction = parse_inplace(field, where, origin);
    else if (key == "attention")
      smaller.attention = parse_attention(field, where, origin);
    else
      refuse(origin, fmt::format("unknown key \"{}\"", where),
             "see docs/formats/policy.md for the keys");
  }
  return smaller;
}

void parse_larger_passes(const Json& value, std::string_view origin, Policy& policy) {
  if (!value.is_array())
    refuse(origin, "\"larger_passes\" is not a list",
           "write [{\"from_tokens\": 64, \"inplace_host_fraction\": 0}]");
  PassExecution smaller{0, policy.inplace_host_fraction, policy.attention, 0};
  for (const Json& entry : value) {
    const std::string name = fmt::format("larger_passes[{}]", policy.larger_passes.size());
    smaller = parse_execution(entry, smaller, name, origin);
    policy.larger_passes.push_back(smaller);
  }
}

Json shares_json(const TierShares& shares) {
  return Json{{"device", shares.device}, {"host", shares.host}, {"disk", shares.disk}};
}

void validate_shares(const TierShares& shares, const char* name) {
  for (double share : {shares.device, shares.host, shares.disk})
    if (!(share >= 0 && share <= 1))
      throw Error(ErrorKind::kUser, fmt::format("a share of {} is {}", name, share),
                  "shares lie between 0 and 1");
  const double sum = shares.device + shares.host + shares.disk;
  if (std::abs(sum - 1) > 1e-6)
    throw Error(ErrorKind::kUser, fmt::format("the shares of {} add up to {}", name, sum),
                "device + host + disk must be 1");
}
}  // namespace

Policy parse_policy(std::string_view json_text, std::string_view origin) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    refuse(origin, "not a JSON object", "see docs/formats/policy.md for an example");
  Policy policy;
  for (const auto& [key, value] : json.items()) {
    if (key == "weights")
      policy.weights = parse_shares(value, key, origin);
    else if (key == "kv")
      policy.kv = parse_shares(value, key, origin);
    else if (key == "activations")
      policy.activations = parse_shares(value, key, origin);
    else if (key == "attention")
      policy.attention = parse_attention(value, key, origin);
    else if (key == "inplace_host_fraction")
      policy.inplace_host_fraction = parse_inplace(value, key, origin);
    else if (key == "larger_passes")
      continue;  // below, when what they begin with is known
    else {
      int64_t* target = key == "micro_batch_sequences"   ? &policy.micro_batch_sequences
                        : key == "micro_batches"         ? &policy.micro_batches
                        : key == "micro_batch_tokens"    ? &policy.micro_batch_tokens
                        : key == "pass_tokens"           ? &policy.pass_tokens
                        : key == "page_tokens"           ? &policy.page_tokens
                        : key == "host_attention_tokens" ? &policy.host_attention_tokens
                        : key == "demand_tokens"         ? &policy.demand_tokens
                        : key == "guess_slots"           ? &policy.guess_slots
                                                         : nullptr;
      if (!target)
        refuse(origin, fmt::format("unknown key \"{}\"", key),
               "see docs/formats/policy.md for the keys");
      *target = parse_count(value, key, origin);
    }
  }
  if (json.contains("larger_passes")) parse_larger_passes(json["larger_passes"], origin, policy);
  try {
    validate(policy);
  } catch (const Error& error) {
    refuse(origin, error.text(), error.mend());
  }
  return policy;
}

std::string policy_to_json(const Policy& policy) {
  Json json{{"weights", shares_json(policy.weights)},
            {"kv", shares_json(policy.kv)},
            {"activations", shares_json(policy.activations)},
            {"attention", attention_name(policy.attention)},
            {"inplace_host_fraction", policy.inplace_host_fraction},
            {"micro_batch_sequences", policy.micro_batch_sequences},
            {"micro_batches", policy.micro_batches},
            {"micro_batch_tokens", policy.micro_batch_tokens},
            {"pass_tokens", policy.pass_tokens},
            {"page_tokens", policy.page_tokens}};
  if (policy.host_attention_tokens > 0)
    json["host_attention_tokens"] = policy.host_attention_tokens;
  if (policy.demand_tokens >= 0) json["demand_tokens"] = policy.demand_tokens;
  if (policy.guess_slots >= 0) json["guess_slots"] = policy.guess_slots;
  for (const PassExecution& one : policy.larger_passes) {
    const Json entry{{"from_tokens", one.from_tokens},
                     {"inplace_host_fraction", one.inplace_host_fraction},
                     {"attention", attention_name(one.attention)},
                     {"micro_batch_tokens", one.micro_batch_tokens}};
    json["larger_passes"].push_back(entry);
  }
  return json.dump();
}

void apply_percent(Policy& policy, const std::array<double, 6>& percent) {
  const auto shares = [](double device, double host) {
    return TierShares{device / 100, host / 100, (100 - device - host) / 100};
  };
  policy.weights = shares(percent[0], percent[1]);
  policy.kv = shares(percent[2], percent[3]);
  policy.activations = shares(percent[4], percent[5]);
  validate(policy);
}

int64_t page_tokens_of(const Policy& policy, const KvFormat& kv,
                       int64_t max_total_tokens) noexcept {
  if (policy.page_tokens > 0) return policy.page_tokens;
  const int64_t least = KvFormat::kKeyBlock;
  return std::clamp(round_up(max_total_tokens, least), least, std::max(kv.page_tokens(), least));
}

size_t Policy::pass_class_of(int64_t tokens) const noexcept {
  size_t out = 0;
  while (out < larger_passes.size() && larger_passes[out].from_tokens <= tokens) ++out;
  return out;
}

PassExecution Policy::execution(size_t pass_class) const noexcept {
  if (pass_class > 0) {
    PassExecution out = larger_passes[pass_class - 1];
    if (out.micro_batch_tokens == 0) out.micro_batch_tokens = micro_batch_tokens;
    return out;
  }
  PassExecution out{0, inplace_host_fraction, attention, micro_batch_tokens};
  // A pass that is at the border may still be of the class.
  if (!larger_passes.empty())
    out.micro_batch_tokens =
        std::min(out.micro_batch_tokens,
                 std::max(micro_batch_sequences, 2 * larger_passes.front().from_tokens));
  return out;
}

double Policy::most_inplace() const noexcept {
  double out = inplace_host_fraction;
  for (const PassExecution& one : larger_passes) out = std::max(out, one.inplace_host_fraction);
  return out;
}

bool Policy::any_attends_on(AttentionPlace place) const noexcept {
  return attention == place ||
         std::any_of(larger_passes.begin(), larger_passes.end(),
                     [&](const PassExecution& one) { return one.attention == place; });
}

namespace {
void validate_inplace(double share, const std::string& name, double most) {
  if (!(share >= 0 && share <= most + 1e-9))
    throw Error(ErrorKind::kUser, fmt::format("{} is {}", name, share),
                fmt::format("write 0 to weights.host, which is {}", most));
}

void validate_larger_passes(const Policy& policy) {
  if (policy.larger_passes.size() >= kMostPassClasses)
    throw Error(ErrorKind::kUser,
                fmt::format("larger_passes has {} entries", policy.larger_passes.size()),
                fmt::format("write at most {}", kMostPassClasses - 1));
  int64_t least = 2;  // every pass has a token
  for (size_t i = 0; i < policy.larger_passes.size(); ++i) {
    const PassExecution& one = policy.larger_passes[i];
    const std::string name = fmt::format("larger_passes[{}]", i);
    if (one.from_tokens < least || one.from_tokens > 1 << 30)
      throw Error(ErrorKind::kUser, fmt::format("{}.from_tokens is {}", name, one.from_tokens),
                  fmt::format("write {} to {}: tokens of a pass, rising from entry to entry", least,
                              1 << 30));
    least = one.from_tokens + 1;
    validate_inplace(one.inplace_host_fraction, name + ".inplace_host_fraction",
                     policy.weights.host);
    if (one.micro_batch_tokens < 0 || one.micro_batch_tokens > policy.micro_batch_tokens)
      throw Error(
          ErrorKind::kUser,
          fmt::format("{}.micro_batch_tokens is {}", name, one.micro_batch_tokens),
          fmt::format("write 1 to micro_batch_tokens, which is {}", policy.micro_batch_tokens));
  }
}
}  // namespace

void validate(const Policy& policy) {
  validate_shares(policy.weights, "weights");
  validate_shares(policy.kv, "KV");
  validate_shares(policy.activations, "activations");
  validate_inplace(policy.inplace_host_fraction, "inplace_host_fraction", policy.weights.host);
  const auto positive = [](int64_t value, const char* name, int64_t largest) {
    if (value < 1 || value > largest)
      throw Error(ErrorKind::kUser, fmt::format("{} is {}", name, value),
                  fmt::format("write 1 to {}", largest));
  };
  positive(policy.micro_batch_sequences, "micro_batch_sequences", 1 << 20);
  positive(policy.micro_batches, "micro_batches", 1 << 16);
  positive(policy.micro_batch_tokens, "micro_batch_tokens", 1 << 20);
  if (policy.page_tokens != 0) positive(policy.page_tokens, "page_tokens", 1 << 16);
  if (policy.pass_tokens < 0)
    throw Error(ErrorKind::kUser, fmt::format("pass_tokens is {}", policy.pass_tokens),
                "write 0 (no limit) or more");
  if (policy.host_attention_tokens != 0)
    positive(policy.host_attention_tokens, "host_attention_tokens", 1 << 20);
  if (policy.demand_tokens < -1 || policy.demand_tokens > kAlwaysDemands)
    throw Error(ErrorKind::kUser, fmt::format("demand_tokens is {}", policy.demand_tokens),
                fmt::format("write 0 (never) to {} (always), or leave it out", kAlwaysDemands));
  constexpr int64_t kMost = 4096;
  if (policy.guess_slots < -1 || policy.guess_slots > kMost)
    throw Error(ErrorKind::kUser, fmt::format("guess_slots is {}", policy.guess_slots),
                fmt::format("write 0 (no guesses) to {}, or leave it out", kMost));
  validate_larger_passes(policy);
}

const char* attention_name(AttentionPlace place) noexcept {
  return place == AttentionPlace::kHost ? "host" : "device";
}

std::string describe(const Policy& policy, bool has_device) {
  const auto shares = [&](const char* name, const TierShares& s) {
    // No more digits than that: the LP's zeros are not exact.
    const auto percent = [](double share) {
      return fmt::format("{:.4g}%", std::round(1e6 * share) / 1e4);
    };
    std::string text =
        fmt::format("{} {} {}", name, percent(has_device ? s.device : s.device + s.host),
                    has_device ? "device" : "memory");
    constexpr double kShown = 5e-7;
    if (has_device && s.host > kShown) text += fmt::format(" {} host", percent(s.host));
    if (s.disk > kShown) text += fmt::format(" {} disk", percent(s.disk));
    return text;
  };
  std::string text = fmt::format("{}; {}; {}; block {} sequences x {} micro-batches",
                                 shares("weights", policy.weights), shares("KV", policy.kv),
                                 shares("activations", policy.activations),
                                 policy.micro_batch_sequences, policy.micro_batches);
  if (!has_device) return text;
  const auto by_class = [&](const PassExecution& one) {
    std::string out;
    if (policy.most_inplace() > 0)
      out += fmt::format("; {:.4g}% of the weights computed by the CPU",
                         100 * one.inplace_host_fraction);
    if (policy.kv.device < 1)
      out += fmt::format("; attention over KV below the device on the {}",
                         attention_name(one.attention));
    return out;
  };
  text += by_class(policy.execution(0));
  for (const PassExecution& one : policy.larger_passes)
    if (const std::string does = by_class(one); !does.empty())
      text += fmt::format("; from {} tokens a pass{}", one.from_tokens, does);
  return text;
}

}  // namespace sluice::policy
