#include "src/serve/callers.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

#include "src/base/error.h"

namespace sluice::serve {

namespace {
constexpr uint64_t kFirstKey = 16, kFirstAddress = 1 << 20;  // ids below are callers by name

thread_local Caller answered;

// Takes as long for a wrong key as for the right one.
bool is_same(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

// "Bearer KEY", the scheme in any case (RFC 9110, 11.1): the key; empty for any other.
std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!http::is_same_name(authorization.substr(0, kScheme.size()), kScheme)) return {};
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization;
}

// Of an IPv6 address its network: a host has all addresses of it.
std::string network_of(const std::string& peer) {
  in6_addr address;
  if (inet_pton(AF_INET6, peer.c_str(), &address) != 1 || IN6_IS_ADDR_V4MAPPED(&address))
    return peer;
  return {reinterpret_cast<const char*>(address.s6_addr), sizeof(address.s6_addr) / 2};
}

double weight_of(const std::string& text, const std::string& where) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(weight) ||
      weight <= 0)
    throw Error(ErrorKind::kUser,
                fmt::format("{}: the weight {} is no number above 0", where, text),
                "write KEY or KEY WEIGHT, such as \"sk-abc 2\"");
  return weight;
}
}  // namespace

std::vector<ApiKey> read_keys(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorKind::kFile, fmt::format("the keys in {} can't be read", path.string()),
                "give a file of one key a line");
  std::vector<ApiKey> keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string key, weight, more;
    if (!(words >> key)) continue;
    const std::string where = fmt::format("{}, line {}", path.string(), number);
    ApiKey one{key, 1};
    if (words >> weight) one.weight = weight_of(weight, where);
    if (words >> more)
      throw Error(ErrorKind::kUser, fmt::format("{} has more than a key and a weight", where),
                  "write one key a line");
    for (const ApiKey& other : keys)
      if (other.key == key)
        throw Error(ErrorKind::kUser, fmt::format("{} has a key that came before", where),
                    "give each caller a key of its own");
    keys.push_back(std::move(one));
  }
  if (keys.empty())
    throw Error(ErrorKind::kUser, fmt::format("{} has no keys: anybody could ask", path.string()),
                "write one key a line");
  return keys;
}

size_t Callers::key_of(const http::Request& head) const {
  const std::string_view shown = bearer(head.header("Authorization"));
  const std::string_view other = head.header("X-Api-Key");  // as Anthropic's callers send it
  size_t found = 0;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const bool is_one = is_same(shown, keys_[i].key) | is_same(other, keys_[i].key);
    if (is_one) found = i + 1;
  }
  return found;
}

Caller Callers::of(const http::Request& request) const {
  const size_t key = keys_.size() > 1 ? key_of(request) : 0;
  if (key > 0) return {kFirstKey + key, keys_[key - 1].weight};
  const uint64_t hash = std::hash<std::string>{}(network_of(request.peer));
  return {std::max<uint64_t>(hash, kFirstAddress), 1};
}

AnsweredCaller::AnsweredCaller(Caller caller) : before_(answered) { answered = caller; }
AnsweredCaller::~AnsweredCaller() { answered = before_; }
Caller AnsweredCaller::now() { return answered; }

}  // namespace sluice::serve
