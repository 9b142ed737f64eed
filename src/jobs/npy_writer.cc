#include "src/jobs/npy_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "src/base/error.h"

namespace sluice::jobs {

namespace {

static_assert(std::endian::native == std::endian::little, "the header says '<f4'");

constexpr int64_t kHeaderBytes =
    128;  // holds the longest shape; a multiple of 64, as the format wants

// Magic, version 1.0, length of the dictionary, the dictionary padded with blanks and a line end.
std::string header(int64_t rows, int64_t columns) {
  constexpr size_t kPrefixBytes = 10;
  std::string text("\x93NUMPY\x01\x00", 8);
  constexpr auto kLength = static_cast<unsigned>(kHeaderBytes - kPrefixBytes);
  text += static_cast<char>(kLength & 0xFF);
  text += static_cast<char>(kLength >> 8);
  text +=
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  text.resize(kHeaderBytes - 1, ' ');
  text += '\n';
  return text;
}

int64_t checked(int64_t columns) {
  SLUICE_ASSERT(columns > 0, "a row has values");
  return columns;
}

}  // namespace

NpyWriter::NpyWriter(std::string path, int64_t columns)
    : path_(std::move(path)),
      temporary_(fmt::format("{}.partial-{}", path_, ::getpid())),
      columns_(checked(columns)),
      file_(temporary_, O_RDWR | O_CREAT | O_TRUNC) {}

NpyWriter::~NpyWriter() {
  if (!is_finished_) ::unlink(temporary_.c_str());
}

void NpyWriter::append(std::span<const float> values) {
  SLUICE_ASSERT(!is_finished_ && std::ssize(values) % columns_ == 0, "whole rows, before finish()");
  constexpr int64_t kValueBytes = sizeof(float);
  file_.write(values.data(), std::ssize(values) * kValueBytes,
              kHeaderBytes + rows_ * columns_ * kValueBytes);
  rows_ += std::ssize(values) / columns_;
}

void NpyWriter::put(int64_t row, std::span<const float> values) {
  SLUICE_ASSERT(!is_finished_ && row >= 0 && std::ssize(values) == columns_, "one row");
  constexpr int64_t kValueBytes = sizeof(float);
  file_.write(values.data(), columns_ * kValueBytes, kHeaderBytes + row * columns_ * kValueBytes);
  rows_ = std::max(rows_, row + 1);
}

void NpyWriter::finish() {
  SLUICE_ASSERT(!is_finished_, "a file is finished once");
  file_.write(header(rows_, columns_).data(), kHeaderBytes, 0);
  file_.sync();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw Error(ErrorKind::kFile, fmt::format("renaming {} to {}: {}", temporary_, path_,
                                              std::generic_category().message(errno)));
  }
  is_finished_ = true;
  sync_folder_of(path_);
}

}  // namespace sluice::jobs
