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

AttentionPlace parse_attention(const Json& value, std::string_view origin) {
  if (value == "device") return AttentionPlace::kDevice;
  if (value == "host") return AttentionPlace::kHost;
  refuse(origin, fmt::format("\"attention\" is {}", value.dump()), "write \"device\" or \"host\"");
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
      policy.attention = parse_attention(value, origin);
    else if (key == "inplace_host_fraction") {
      if (!value.is_number())
        refuse(origin, "\"inplace_host_fraction\" is not a number",
               "write a share between 0 and weights.host");
      policy.inplace_host_fraction = value.get<double>();
    } else {
      int64_t* target = key == "micro_batch_sequences" ? &policy.micro_batch_sequences
                        : key == "micro_batches"       ? &policy.micro_batches
                        : key == "micro_batch_tokens"  ? &policy.micro_batch_tokens
                        : key == "pass_tokens"         ? &policy.pass_tokens
                        : key == "page_tokens"         ? &policy.page_tokens
                                                       : nullptr;
      if (!target)
        refuse(origin, fmt::format("unknown key \"{}\"", key),
               "see docs/formats/policy.md for the keys");
      if (!value.is_number_integer())
        refuse(origin, fmt::format("\"{}\" is not a whole number", key), "write a whole number");
      *target = value.get<int64_t>();
    }
  }
  try {
    validate(policy);
  } catch (const Error& error) {
    refuse(origin, error.text(), error.mend());
  }
  return policy;
}

std::string policy_to_json(const Policy& policy) {
  const Json json{{"weights", shares_json(policy.weights)},
                  {"kv", shares_json(policy.kv)},
                  {"activations", shares_json(policy.activations)},
                  {"attention", attention_name(policy.attention)},
                  {"inplace_host_fraction", policy.inplace_host_fraction},
                  {"micro_batch_sequences", policy.micro_batch_sequences},
                  {"micro_batches", policy.micro_batches},
                  {"micro_batch_tokens", policy.micro_batch_tokens},
                  {"pass_tokens", policy.pass_tokens},
                  {"page_tokens", policy.page_tokens}};
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

void validate(const Policy& policy) {
  validate_shares(policy.weights, "weights");
  validate_shares(policy.kv, "KV");
  validate_shares(policy.activations, "activations");
  if (!(policy.inplace_host_fraction >= 0 &&
        policy.inplace_host_fraction <= policy.weights.host + 1e-9))
    throw Error(ErrorKind::kUser,
                fmt::format("inplace_host_fraction is {}", policy.inplace_host_fraction),
                fmt::format("write 0 to weights.host, which is {}", policy.weights.host));
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
}

const char* attention_name(AttentionPlace place) noexcept {
  return place == AttentionPlace::kHost ? "host" : "device";
}

std::string describe(const Policy& policy, bool has_device) {
  const auto shares = [&](const char* name, const TierShares& s) {
    std::string text =
        fmt::format("{} {:.4g}% {}", name, 100 * (has_device ? s.device : s.device + s.host),
                    has_device ? "device" : "memory");
    if (has_device && s.host > 0) text += fmt::format(" {:.4g}% host", 100 * s.host);
    if (s.disk > 0) text += fmt::format(" {:.4g}% disk", 100 * s.disk);
    return text;
  };
  std::string text = fmt::format("{}; {}; {}; block {} sequences x {} micro-batches",
                                 shares("weights", policy.weights), shares("KV", policy.kv),
                                 shares("activations", policy.activations),
                                 policy.micro_batch_sequences, policy.micro_batches);
  if (has_device && policy.inplace_host_fraction > 0)
    text += fmt::format("; {:.4g}% of the weights computed by the CPU",
                        100 * policy.inplace_host_fraction);
  if (has_device && policy.kv.device < 1)
    text += fmt::format("; attention over KV below the device on the {}",
                        attention_name(policy.attention));
  return text;
}

}  // namespace sluice::policy
