#include "src/ranks/wire.h"

#include <cstring>

#include "src/base/error.h"

namespace sluice::ranks {

Writer& Writer::number(int64_t value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes_.append(raw, sizeof value);
  return *this;
}

Writer& Writer::real(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return number(bits);
}

Writer& Writer::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_ += value;
  return *this;
}

std::string_view Reader::next(size_t count) {
  if (count > bytes_.size())
    throw Error(ErrorKind::kInternal, "a message between ranks is cut short");
  const std::string_view out = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return out;
}

int64_t Reader::number() {
  int64_t value = 0;
  std::memcpy(&value, next(sizeof value).data(), sizeof value);
  return value;
}

double Reader::real() {
  const int64_t bits = number();
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::string Reader::text() { return std::string(next(static_cast<size_t>(number()))); }

std::string Status::pack() const {
  return Writer(Kind::kStatus)
      .number(passes)
      .number(tokens)
      .number(running)
      .real(tokens_per_second)
      .real(lane_share)
      .text(lane)
      .take();
}

Status Status::unpack(Reader& reader) {
  Status out;
  out.passes = reader.number();
  out.tokens = reader.number();
  out.running = reader.number();
  out.tokens_per_second = reader.real();
  out.lane_share = reader.real();
  out.lane = reader.text();
  return out;
}

}  // namespace sluice::ranks
