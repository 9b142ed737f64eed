#include "src/jobs/bounded_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "src/jobs/request.h"
#include "src/jobs/request_fields.h"

namespace sluice::jobs {

namespace {
[[noreturn]] void refuse(const char* code, std::string message, std::string param = {}) {
  throw Refusal{code, std::move(message), std::move(param)};
}

// Builds the value as its parts come. Keys are known to be new when they are added, so that an
// object takes time by the number of its keys and not by its square.
template <typename Json>
class Builder {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  explicit Builder(int most_depth) : most_depth_(static_cast<size_t>(most_depth)) {}
  Json take() { return std::move(root_); }
  int64_t error_byte = 0;
  bool is_out_of_range = false;

  // What nlohmann's reader calls.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(value); }
  bool number_unsigned(number_unsigned_t value) { return add(value); }
  bool number_float(number_float_t value, const string_t&) { return add(value); }
  bool string(string_t& value) { return add(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    auto& keys = keys_[open_.size() - 1];
    if (open_.size() == 1) field_ = name.substr(0, 100);
    if (static_cast<int64_t>(keys.size()) == kMostKeys)
      refuse("invalid_json", fmt::format("an object has more than {} keys", kMostKeys),
             open_.size() > 1 ? field_ : "");
    if (!keys.insert(name).second)
      refuse("invalid_request", fmt::format("the field \"{}\" is given twice", name.substr(0, 100)),
             field_);
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    error_byte = static_cast<int64_t>(byte);
    is_out_of_range = error.id == kNumberOutOfRange;
    return false;
  }

 private:
  static constexpr int kNumberOutOfRange = 406;  // nlohmann's own number

  template <typename Value>
  bool add(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  template <typename Value>
  Json& place(Value&& value) {
    if (++values_ > kMaxLineValues)
      refuse("invalid_json", fmt::format("more than {} values", kMaxLineValues));
    if (open_.empty()) return root_ = Json(std::forward<Value>(value));
    if (open_.back()->is_array()) {
      auto& list = open_.back()->template get_ref<typename Json::array_t&>();
      return list.emplace_back(std::forward<Value>(value));
    }
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    if constexpr (requires { object.emplace_back(key_, Json()); })
      return object.emplace_back(std::move(key_), Json(std::forward<Value>(value))).second;
    else
      return object.emplace(std::move(key_), Json(std::forward<Value>(value))).first->second;
  }
  bool open(Json empty) {
    if (open_.size() == most_depth_)
      refuse("invalid_json", fmt::format("nested deeper than {} levels", most_depth_));
    Json& placed = place(std::move(empty));
    open_.push_back(&placed);
    if (keys_.size() < open_.size()) keys_.emplace_back();
    keys_[open_.size() - 1].clear();
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const size_t most_depth_;
  Json root_;
  std::vector<Json*> open_;  // from the root; those above the last don't move while it grows
  std::vector<std::unordered_set<std::string>> keys_;  // of each open object
  std::string key_;
  std::string field_;  // of the outermost object, that is being read
  int64_t values_ = 0;
};
}  // namespace

template <typename Json>
Json parse_bounded(std::string_view text, int most_depth, const char* what) {
  Builder<Json> builder(most_depth);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  if (builder.is_out_of_range)
    refuse("invalid_json", fmt::format("a number in {} is out of range", what));
  refuse("invalid_json", fmt::format("{} is not valid JSON: it breaks at byte {} of {}", what,
                                     builder.error_byte, text.size()));
}

template nlohmann::json parse_bounded(std::string_view, int, const char*);
template nlohmann::ordered_json parse_bounded(std::string_view, int, const char*);

}  // namespace sluice::jobs
