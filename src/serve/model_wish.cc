#include "src/serve/model_wish.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/serve/api_error.h"

namespace sluice::serve {

namespace {
using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const char* field, const char* what) {
  throw ApiError{400, std::string(field) + " " + what, "", field, 0};
}

/// Looks at the fields of the outermost object, and passes over what they hold.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  ModelWish wish;
  bool is_object = false;

  bool null() override { return true; }
  bool boolean(bool) override { return other(); }
  bool number_integer(int64_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) override { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return number(value); }
  bool binary(Json::binary_t&) override { return other(); }
  bool string(std::string& value) override {
    if (depth_ != 1) return in_list();
    if (key_ == "model") wish.model = value;
    if (key_ == "keep_alive" && !value.empty()) {
      wish.keep = read_keep_time(value);
      if (!wish.keep) refuse("keep_alive", "must be seconds, or a time such as \"5m\"");
    }
    if (key_ == "ttl") refuse("ttl", "must be a number of seconds");
    if (is_prompt() && !value.empty()) wish.asks = true;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 0) is_object = true;
    if (depth_ == 1) other();
    in_list();
    ++depth_;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override {
    if (depth_ == 1) other();
    in_list();
    ++depth_;
    return true;
  }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override {
    if (depth_ == 1) key_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool is_prompt() const { return key_ == "prompt" || key_ == "messages" || key_ == "input"; }
  bool in_list() {
    if (depth_ >= 2 && is_prompt()) wish.asks = true;
    return true;
  }
  bool other() {
    if (depth_ != 1) return in_list();
    if (key_ == "model") refuse("model", "must be a string");
    if (key_ == "keep_alive") refuse("keep_alive", "must be a number or a string");
    if (key_ == "ttl") refuse("ttl", "must be a number of seconds");
    return true;
  }
  bool number(double value) {
    if (depth_ == 1 && (key_ == "keep_alive" || key_ == "ttl")) {
      wish.keep = keep_time_of(value);
      return true;
    }
    return other();
  }

  int depth_ = 0;
  std::string key_;
};
}  // namespace

std::optional<ModelWish> read_wish(std::string_view body) {
  Reader reader;
  const bool is_whole = Json::sax_parse(body.begin(), body.end(), &reader);
  if (!is_whole || !reader.is_object) return std::nullopt;
  return std::move(reader.wish);
}

}  // namespace sluice::serve
