#include "src/model/positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice {

namespace {

using nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";

[[noreturn]] void refuse(const std::string& what, const std::string& mend) {
  throw Error(ErrorKind::kUser, what, mend);
}

void check_number(const char* parameter, double value, double least, double most) {
  if (value != 0 && !(value >= least && value <= most))
    refuse(fmt::format("`{}` {} is outside {} to {}", parameter, value, least, most),
           fmt::format("leave `{}` out, or write another", parameter));
}

// Where config.json has rotary positions: transformers 5 keeps theta there too, earlier versions
// beside it.
const char* rope_key(const json& whole) {
  const auto at = whole.find("rope_parameters");
  return at == whole.end() || at->is_null() ? "rope_scaling" : "rope_parameters";
}

json rope_of(const ModelConfig& config, const json& whole, const char* key) {
  const auto at = whole.find(key);
  if (at == whole.end() || at->is_null()) return json::object();
  if (!at->is_object())
    config.refuse(fmt::format("\"{}\" is not an object", key), "mend the config.json");
  for (const auto& [name, value] : at->items())
    if (value.is_object())
      refuse(fmt::format("{}: its layers have rotary positions of several kinds, which can't be "
                         "scaled as one",
                         config.origin()),
             "leave `rope_scaling`, `rope_factor`, `rope_theta` and `rope_original` out, or write "
             "what is wanted into a copy of its config.json");
  return *at;
}

const char* key_of_positions(const json& whole) {
  for (const char* key : {"max_position_embeddings", "n_positions", "n_ctx", "seq_length"})
    if (const auto at = whole.find(key); at != whole.end() && !at->is_null()) return key;
  return nullptr;
}

double number_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

std::string type_of(const json& rope) {
  for (const char* key : {"rope_type", "type"})
    if (const auto at = rope.find(key); at != rope.end() && at->is_string()) return *at;
  return "default";
}

// The object that is wanted whole.
json given_object(const PositionWishes& wishes) {
  json out = json::parse(wishes.rope_scaling, nullptr, false);
  if (!out.is_object())
    refuse(fmt::format("`rope_scaling` {} is no JSON object", wishes.rope_scaling),
           "write linear, yarn, none, or an object as config.json has it");
  return out;
}

json scaled(const ModelConfig& config, const PositionWishes& wishes, const json& now,
            int64_t& positions) {
  const std::string& type = wishes.rope_scaling;
  if (type.starts_with('{')) {
    json out = given_object(wishes);
    const double most = number_of(out, "factor") * number_of(out, kOriginal);
    if (most >= 1 && most <= 1e9) positions = static_cast<int64_t>(std::llround(most));
    return out;
  }
  if (type == "none") {
    if (wishes.rope_factor != 0)
      refuse("`rope_factor` has no effect with `rope_scaling` none", "leave one of them out");
    return {{"rope_type", "default"}};
  }
  const bool keeps_kind = type.empty();
  json out = keeps_kind ? now : json{{"rope_type", type}};
  if (!keeps_kind && type != "linear" && type != "yarn")
    refuse(fmt::format("`rope_scaling` {} is not known", type),
           "write linear, yarn, none, or an object as config.json has it");
  if (keeps_kind && wishes.rope_factor == 0 && wishes.rope_original == 0) return out;
  if (keeps_kind && type_of(out) == "default")
    refuse("`rope_factor` has nothing to scale: the model's positions are as they were trained",
           "add `rope_scaling` yarn or linear");
  // A scaled model has `factor` times as many positions as it was trained on.
  int64_t original = wishes.rope_original;
  if (original == 0) original = static_cast<int64_t>(number_of(now, kOriginal));
  if (original < 1) original = positions;
  const double factor = wishes.rope_factor != 0 ? wishes.rope_factor : number_of(now, "factor");
  if (factor == 0)
    refuse(fmt::format("`rope_scaling` {} needs `rope_factor`", type),
           "write by which factor sequences become longer");
  out["factor"] = factor;
  out[kOriginal] = original;
  positions = static_cast<int64_t>(std::llround(static_cast<double>(original) * factor));
  if (positions < 1 || positions > int64_t{1} << 31)
    config.refuse(fmt::format("{} positions times {} are {}", original, factor, positions),
                  "write another `rope_factor`");
  return out;
}

}  // namespace

ModelConfig with_positions(const ModelConfig& config, const PositionWishes& wishes) {
  constexpr double kMost = 1e12;
  check_number("rope_factor", wishes.rope_factor, 1e-3, 1e6);
  check_number("rope_theta", wishes.rope_theta, 1, kMost);
  check_number("rope_original", static_cast<double>(wishes.rope_original), 1, 1e9);
  json changes = json::object();
  if (wishes.changes_rope()) {
    const json whole = json::parse(config.text());
    const char* const key = rope_key(whole);
    const json now = rope_of(config, whole, key);
    const char* const positions_key = key_of_positions(whole);
    int64_t positions =
        positions_key ? config.integer(positions_key, 1, int64_t{1} << 31) : wishes.rope_original;
    if (positions == 0)
      refuse(fmt::format("{} does not say how many positions the model was trained on",
                         config.origin()),
             "add `rope_original`");
    json rope = scaled(config, wishes, now, positions);
    for (const char* kept : {"rope_theta", "partial_rotary_factor"})
      if (!rope.contains(kept) && now.contains(kept)) rope[kept] = now[kept];
    if (wishes.rope_theta != 0) {
      if (whole.contains("rotary_emb_base")) changes["rotary_emb_base"] = wishes.rope_theta;
      changes["rope_theta"] = rope["rope_theta"] = wishes.rope_theta;
    }
    changes[key] = rope;
    changes[positions_key ? positions_key : "max_position_embeddings"] = positions;
  }
  if (wishes.context_tokens > 0) changes[kContextKey] = wishes.context_tokens;
  const int64_t longest = std::max(wishes.context_tokens, wishes.sequence_tokens);
  if (longest > 0) changes[kLongestKey] = longest;
  return config.with_values(changes.dump());
}

}  // namespace sluice
