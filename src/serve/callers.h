#pragma once
// Who asks: the holder of one of the server's keys, or, where there is at most one key, an address.
// By this the places of the block and the tokens are shared (RequestQueue, RequestSource). Behind a
// proxy all callers have the proxy's address, and share as one: give them keys. Thread safe.
#include <filesystem>
#include <string>
#include <vector>

#include "src/engine/passes/sequence.h"
#include "src/http/message.h"

namespace sluice::serve {

/// A key that callers may show, and what its holder's share weighs against another's.
struct ApiKey {
  std::string key;
  double weight = 1;
};

/// The keys in a file: one a line, with a weight behind it where it is not 1; what follows a # and
/// empty lines are passed over. Errors: kFile where it can't be read; kUser, with the line, where a
/// weight is no number above 0, a key comes twice, or there is none.
std::vector<ApiKey> read_keys(const std::filesystem::path& path);

class Callers {
 public:
  /// Without keys anybody may ask.
  explicit Callers(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  bool asks_for_key() const noexcept { return !keys_.empty(); }
  /// Whether the head shows one of the keys, where one is asked for: "Authorization: Bearer KEY" or
  /// "X-Api-Key: KEY". Takes as long for a wrong key as for a right one.
  bool is_known(const http::Request& head) const { return keys_.empty() || key_of(head) > 0; }
  /// Whose request it is. IPv6 addresses of one network of 64 bits are one caller's.
  Caller of(const http::Request& request) const;

 private:
  /// Its number from 1 on; 0: none.
  size_t key_of(const http::Request& head) const;
  std::vector<ApiKey> keys_;
};

/// Files and batches of all callers: they share as one.
inline constexpr Caller kBatchCaller{1, 1};
/// Of batches' requests (RequestQueue, preemption): any caller's come first.
inline constexpr int32_t kBatchPriority = 1000;

/// The caller whose request the thread answers, until this goes.
class AnsweredCaller {
 public:
  explicit AnsweredCaller(Caller caller);
  ~AnsweredCaller();
  AnsweredCaller(const AnsweredCaller&) = delete;
  AnsweredCaller& operator=(const AnsweredCaller&) = delete;
  /// Nobody in particular where there is none.
  static Caller now();
  /// Whether that is a batch.
  static bool is_batch() { return now().id == kBatchCaller.id; }

 private:
  Caller before_;
};

}  // namespace sluice::serve
