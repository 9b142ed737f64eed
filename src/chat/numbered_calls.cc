#include "src/chat/numbered_calls.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sluice::chat {

namespace {
using nlohmann::ordered_json;

const std::string* text_at(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

// Of the calls so far, by the ids that they came with: the last of each.
struct Numbered {
  std::string id;
  int64_t number = 0;
};
using ById = std::map<std::string, Numbered>;

void number_message(const ToolFormat& format, ordered_json& message, ById& by_id, int64_t& calls) {
  const auto all = message.find("tool_calls");
  if (all == message.end() || !all->is_array()) return;
  for (ordered_json& call : *all) {
    const int64_t number = calls++;
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    const std::string* name = text_at(*function, "name");
    if (!name) continue;
    std::string id = numbered_call_id(format, *name, number);
    if (const std::string* before = text_at(call, "id")) by_id[*before] = {id, number};
    call["id"] = std::move(id);
  }
}

bool is_result(const ordered_json& message) {
  const std::string* role = text_at(message, "role");
  return role && *role == "tool";
}

// The results [begin, end): in the order of their calls, where all of these are known.
void name_results(const ById& by_id, ordered_json& messages, size_t begin, size_t end) {
  std::vector<std::pair<int64_t, ordered_json>> results;
  bool are_known = true;
  for (size_t i = begin; i < end; ++i) {
    ordered_json& message = messages[i];
    const std::string* id = text_at(message, "tool_call_id");
    const auto call = id ? by_id.find(*id) : by_id.end();
    are_known = are_known && call != by_id.end();
    if (call != by_id.end()) message["tool_call_id"] = call->second.id;
    results.emplace_back(call == by_id.end() ? 0 : call->second.number, message);
  }
  if (!are_known) return;
  std::stable_sort(results.begin(), results.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  for (size_t i = begin; i < end; ++i) messages[i] = std::move(results[i - begin].second);
}
}  // namespace

int64_t number_calls(const ToolFormat& format, ordered_json& messages) {
  ById by_id;
  int64_t calls = 0;
  for (size_t i = 0; i < messages.size();) {
    if (!messages[i].is_object() || !is_result(messages[i])) {
      if (messages[i].is_object()) number_message(format, messages[i], by_id, calls);
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < messages.size() && messages[i].is_object() && is_result(messages[i])) ++i;
    name_results(by_id, messages, begin, i);
  }
  return calls;
}

}  // namespace sluice::chat
