#include "io/checkpoint/json_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "io/checkpoint/tensor_entry.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

using nlohmann::json;

// Builds the document value by value, so that limits hold before memory is spent and a repeated key
// is seen.
class LimitedBuilder : public nlohmann::json_sax<json> {
 public:
  explicit LimitedBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      return fail(fmt::format("the key {} appears twice", in_quotes(name)));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return fail(fmt::format("no valid JSON at byte {}", position));
  }

  json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  json* add(json value) {
    if (++values_ > limits_.max_values) {
      fail(fmt::format("more than {} values", limits_.max_values));
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[std::move(key_)] = std::move(value));
  }
  bool open(json container) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth)
      return fail(fmt::format("nested more than {} deep", limits_.max_depth));
    json* added = add(std::move(container));
    if (added != nullptr) open_.push_back(added);
    return added != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  json root_;
  std::vector<json*> open_;  // containers not yet closed; a container only grows at its end while
                             // an inner one is open
  std::string key_;
  std::string problem_;
  int64_t values_ = 0;
};

}  // namespace

json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  std::string problem;
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    problem =
        fmt::format("{} of JSON, more than {}", format_bytes(static_cast<int64_t>(text.size())),
                    format_bytes(limits.max_bytes));
  } else {
    LimitedBuilder builder(limits);
    if (json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
    problem = builder.problem();
  }
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", where, problem),
              "the file is damaged or not what its name says: download it again");
}

json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

}  // namespace sluice::io
