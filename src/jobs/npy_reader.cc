#include "src/jobs/npy_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "src/base/error.h"

namespace sluice::jobs {

namespace {
constexpr int64_t kPrefixBytes = 10;  // of version 1.0: magic, version, length
constexpr int64_t kMostColumns = 1 << 24;

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, problem),
              "give a file that sluice eval --save-logits or sluice logits wrote");
}

int64_t number_at(std::string_view text, size_t& at, const std::string& path) {
  while (at < text.size() && text[at] == ' ') ++at;
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (problem != std::errc{} || value < 0) refuse(path, "its shape is no pair of numbers");
  at = static_cast<size_t>(end - text.data());
  return value;
}
}  // namespace

NpyReader::NpyReader(std::string path) : file_(std::move(path), O_RDONLY) {
  const std::string& name = file_.path();
  char prefix[kPrefixBytes] = {};
  if (file_.read(prefix, kPrefixBytes, 0) < kPrefixBytes ||
      std::string_view(prefix, 8) != std::string_view("\x93NUMPY\x01\x00", 8))
    refuse(name, "not a NumPy .npy file (version 1.0)");
  const auto length =
      static_cast<unsigned char>(prefix[8]) + 256 * static_cast<unsigned char>(prefix[9]);
  std::string header(static_cast<size_t>(length), ' ');
  if (file_.read(header.data(), length, kPrefixBytes) < length) refuse(name, "cut short");
  if (header.find("'<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos)
    refuse(name, "not f32 rows in C order");
  const size_t shape = header.find('(');
  if (shape == std::string::npos) refuse(name, "its header has no shape");
  size_t at = shape + 1;
  rows_ = number_at(header, at, name);
  if (at >= header.size() || header[at] != ',') refuse(name, "not a matrix");
  columns_ = number_at(header, ++at, name);
  header_bytes_ = kPrefixBytes + length;
  if (columns_ == 0 || columns_ > kMostColumns || at >= header.size() || header[at] != ')')
    refuse(name, "not a matrix");
  const int64_t available = (file_.size_bytes() - header_bytes_) / 4 / columns_;
  if (rows_ > available)
    refuse(name, fmt::format("cut short: {} of {} rows are there", available, rows_));
  values_.resize(static_cast<size_t>(columns_));
}

std::span<const float> NpyReader::row(int64_t row) {
  SLUICE_ASSERT(row >= 0 && row < rows_, "a row of the file");
  const int64_t bytes = columns_ * 4;
  if (file_.read(reinterpret_cast<char*>(values_.data()), bytes, header_bytes_ + row * bytes) <
      bytes)
    refuse(file_.path(), fmt::format("row {} ended early", row));
  return values_;
}

}  // namespace sluice::jobs
