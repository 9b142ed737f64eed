#pragma once
// Values as bytes and back, for messages between ranks of one program: the same build on all of
// them, which the first message checks. Pure.
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::ranks {

/// What a message is; its first byte.
enum class Kind : uint8_t {
  kHello = 1,  // to rank 0: protocol, config, host, pid, keys of records that the rank's file holds
  kRecord,     // a record of the rank's file
  kAsk,        // how many rows; whether it is idle
  kStatus,     // Status
  kBye,        // why; empty: all is well
  kWelcome,    // from rank 0: refusal (empty: none), workload, keys whose records it wants
  kRows,       // count, then line number and line of each
  kAlive,      // either way, before there is anything else to say
  kEnd,        // whether it is complete: say goodbye
  kLeave,      // whether all are here: end the process
};

/// Makes a message.
class Writer {
 public:
  explicit Writer(Kind kind) : bytes_(1, static_cast<char>(kind)) {}
  Writer& number(int64_t value);
  Writer& real(double value);
  Writer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Takes a message apart, in the order it was made. Errors of all reads: kInternal where the
/// message is too short.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) { kind_ = static_cast<Kind>(next(1)[0]); }
  Kind kind() const noexcept { return kind_; }
  int64_t number();
  double real();
  std::string text();
  bool at_end() const noexcept { return bytes_.empty(); }

 private:
  std::string_view next(size_t count);

  std::string_view bytes_;
  Kind kind_;
};

/// What a rank says of itself, once a second.
struct Status {
  int64_t passes = 0, tokens = 0, running = 0;
  double tokens_per_second = 0;
  double lane_share = 0;  // of the time that the busiest lane works
  std::string lane;       // its name; empty: nothing has run
  bool operator==(const Status&) const = default;

  std::string pack() const;
  static Status unpack(Reader& reader);
};

}  // namespace sluice::ranks
