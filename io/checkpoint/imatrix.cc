#include "io/checkpoint/imatrix.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "io/checkpoint/gguf.h"
#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/base/printable.h"

namespace sluice::io {

namespace {
constexpr int64_t kMostNameBytes = 1024;
constexpr int64_t kMostImatrixBytes = int64_t{1} << 30;
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

[[noreturn]] void refuse(const InputFile& file, const std::string& problem) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", file.path().string(), problem),
              "give a file that llama-imatrix has written (.dat or .gguf)");
}

// `values` are sums over `count` rows.
void divide(const InputFile& file, const std::string& name, std::span<float> values, float count) {
  if (!std::isfinite(count) || count < 0)
    refuse(file, fmt::format("{}: a count of {}", printable(name), count));
  for (float& value : values) {
    if (!std::isfinite(value) || value < 0)
      refuse(file, fmt::format("{}: {} is no sum of squares", printable(name), value));
    value = count > 0 ? value / count : 0;
    if (!std::isfinite(value))
      refuse(file, fmt::format("{}: sums over a count of {}", printable(name), count));
  }
}

std::vector<float> floats_of(const InputFile& file, const TensorEntry& tensor) {
  if (tensor.blocks != BlockType::kNone || tensor.dtype != DType::kF32)
    refuse(file, fmt::format("{} is not of f32", printable(tensor.name)));
  std::vector<float> out(static_cast<size_t>(tensor.bytes) / sizeof(float));
  file.read(tensor.offset, std::as_writable_bytes(std::span(out)), "sums");
  return out;
}

Imatrix read_gguf_form(const InputFile& file) {
  const GgufHeader header = read_gguf_header(file.path());
  if (header.metadata.text_or("general.type", "") != "imatrix")
    refuse(file, "is a GGUF file, but no importance matrix (its general.type is not \"imatrix\")");
  std::map<std::string, const TensorEntry*> counts;
  for (const TensorEntry& tensor : header.tensors)
    if (tensor.name.ends_with(kCounts))
      counts[tensor.name.substr(0, tensor.name.size() - kCounts.size())] = &tensor;
  Imatrix out;
  for (const TensorEntry& tensor : header.tensors) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const auto found = counts.find(name);
    if (found == counts.end()) refuse(file, fmt::format("{} has no counts", printable(name)));
    const std::vector<float> rows = floats_of(file, *found->second);
    ImatrixEntry& entry = out[name];
    entry.squares = floats_of(file, tensor);
    entry.experts = std::ssize(rows);
    if (entry.experts < 1 || entry.squares.empty() || entry.squares.size() % rows.size() != 0)
      refuse(file, fmt::format("{} has {} sums for {} counts", printable(name),
                               entry.squares.size(), rows.size()));
    const size_t cols = entry.squares.size() / rows.size();
    for (size_t expert = 0; expert < rows.size(); ++expert)
      divide(file, name, std::span(entry.squares).subspan(expert * cols, cols), rows[expert]);
  }
  if (out.size() != counts.size()) refuse(file, "has counts without sums");
  return out;
}

// int32 entries; of each: int32 bytes of its name, the name, int32 times, int32 values, that many
// f32, which are sums over so many times of means.
class OldForm {
 public:
  explicit OldForm(const InputFile& file) : file_(file) {}

  Imatrix read() {
    const int32_t entries = number("the number of entries");
    if (entries < 1) refuse(file_, fmt::format("has {} entries", entries));
    Imatrix out;
    for (int32_t i = 0; i < entries; ++i) {
      const int32_t length = number("the length of a name");
      if (length < 1 || length > kMostNameBytes)
        refuse(file_, fmt::format("entry {} of {} has a name of {} bytes", i + 1, entries, length));
      need(length, "a name");
      const std::string name = file_.read_text(at_, length, "a name");
      at_ += length;
      const int32_t times = number("a count");
      const int32_t values = number("a number of values");
      if (values < 1) refuse(file_, fmt::format("{} has {} values", printable(name), values));
      need(int64_t{values} * 4, "values");
      ImatrixEntry& entry = out[name];
      if (!entry.squares.empty()) refuse(file_, fmt::format("{} comes twice", printable(name)));
      entry.squares.resize(static_cast<size_t>(values));
      file_.read(at_, std::as_writable_bytes(std::span(entry.squares)), "values");
      at_ += int64_t{values} * 4;
      divide(file_, name, entry.squares, static_cast<float>(times));
    }
    return out;
  }

 private:
  void need(int64_t bytes, const char* what) const {
    if (bytes > file_.size() - at_)
      refuse(file_, fmt::format("ends at byte {}, within {}: cut short, or no importance matrix",
                                file_.size(), what));
  }
  int32_t number(const char* what) {
    need(4, what);
    int32_t value = 0;
    file_.read(at_, std::as_writable_bytes(std::span(&value, 1)), what);
    at_ += 4;
    return value;
  }

  const InputFile& file_;
  int64_t at_ = 0;
};
}  // namespace

Imatrix read_imatrix(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() > kMostImatrixBytes)
    refuse(file, "is larger than 1 GiB, which no importance matrix is");
  Imatrix out = is_gguf(path) ? read_gguf_form(file) : OldForm(file).read();
  if (out.empty()) refuse(file, "has no entries");
  return out;
}

}  // namespace sluice::io
