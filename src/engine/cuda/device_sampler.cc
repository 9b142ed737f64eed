#include "src/engine/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/driver.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/device_areas.h"
#include "src/sampling/philox.h"

namespace sluice {

namespace {
// Of all rows together: penalties over a few long outputs, or short ones of a full block.
constexpr int64_t kMostChanges = 16384;

int64_t mask_words(int64_t vocab_size) { return (vocab_size + 63) / 64 * 2; }

// Where the parts of the area begin.
struct Layout {
  int64_t rows, changes, masks, sampled, end;
};

Layout layout(int64_t vocab_size, int64_t rows) {
  Layout at{};
  at.rows = 0;
  at.changes = round_up(rows * static_cast<int64_t>(sizeof(cuda::SamplingRow)), kLine);
  at.masks = at.changes + kMostChanges * static_cast<int64_t>(sizeof(cuda::LogitChange));
  at.sampled = at.masks + round_up(rows * mask_words(vocab_size) * 4, kLine);
  at.end = at.sampled + round_up(rows * static_cast<int64_t>(sizeof(cuda::SampledRow)), kLine);
  return at;
}
}  // namespace

int64_t DeviceSampler::area_bytes(int64_t vocab_size, int64_t rows) {
  return layout(vocab_size, rows).end;
}

DeviceSampler::DeviceSampler(int64_t vocab_size, int64_t rows, std::span<std::byte> device,
                             std::span<std::byte> host)
    : vocab_size_(vocab_size), most_rows_(rows), device_area_(device), host_area_(host) {}

template <class T>
std::span<T> DeviceSampler::host(int64_t begin, int64_t count) const {
  return {reinterpret_cast<T*>(host_area_.data() + begin), static_cast<size_t>(count)};
}

void DeviceSampler::begin() noexcept { rows_ = changes_ = masks_ = 0; }

bool DeviceSampler::add(int64_t row, const TokenRequest& request) {
  SLUICE_ASSERT(rows_ < most_rows_, "rows are chosen a part at a time");
  const sampling::SamplingParams& params = request.sampler->params();
  if (sampling::is_for_host(params)) return false;
  const sampling::History& history = request.history;
  std::span<const sampling::LogitChange> changes;
  try {
    changes = request.sampler->changes(history, vocab_size_, workspace_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUser) throw;
    return false;
  }
  if (changes_ + std::ssize(changes) > kMostChanges) return false;

  const Layout at = layout(vocab_size_, most_rows_);
  cuda::SamplingRow how;
  how.row = static_cast<int32_t>(row);
  how.temperature = params.temperature;
  how.top_k = params.top_k;
  how.top_p = params.top_p;
  how.min_p = params.min_p;
  how.alternatives = std::min(params.logprobs, cuda::kMostAlternatives);
  how.first_change = static_cast<int32_t>(changes_);
  how.changes = static_cast<int32_t>(changes.size());
  if (params.temperature > 0) how.uniform = sampling::uniform(params.seed, history.output.size());
  const auto kept = host<cuda::LogitChange>(at.changes, kMostChanges);
  for (const sampling::LogitChange& change : changes)
    kept[static_cast<size_t>(changes_++)] = {change.token,   change.bias,      change.repetition,
                                             change.penalty, change.is_banned, 0};
  if (!history.allowed.empty()) {
    const int64_t bytes = mask_words(vocab_size_) * 4;
    const auto mask = host<std::byte>(at.masks + masks_ * bytes, bytes);
    const size_t given = std::min(mask.size(), history.allowed.size_bytes());
    std::memcpy(mask.data(), history.allowed.data(), given);
    std::memset(mask.data() + given, 0, mask.size() - given);
    how.mask = static_cast<int32_t>(masks_++);
  }
  host<cuda::SamplingRow>(at.rows, most_rows_)[static_cast<size_t>(rows_++)] = how;
  return true;
}

void DeviceSampler::queue(float* logits, cuda::Stream stream) {
  if (rows_ == 0) return;
  const Layout at = layout(vocab_size_, most_rows_);
  const auto send = [&](int64_t begin, int64_t bytes) {
    if (bytes > 0)
      cuda::copy_to_device(device_area_.data() + begin, host_area_.data() + begin, bytes, stream);
  };
  send(at.rows, rows_ * static_cast<int64_t>(sizeof(cuda::SamplingRow)));
  send(at.changes, changes_ * static_cast<int64_t>(sizeof(cuda::LogitChange)));
  send(at.masks, masks_ * mask_words(vocab_size_) * 4);
  cuda::SamplingArguments arguments;
  arguments.logits = logits;
  arguments.vocab_size = static_cast<int32_t>(vocab_size_);
  arguments.rows = reinterpret_cast<const cuda::SamplingRow*>(device_area_.data() + at.rows);
  arguments.changes = reinterpret_cast<cuda::LogitChange*>(device_area_.data() + at.changes);
  arguments.masks = reinterpret_cast<const uint32_t*>(device_area_.data() + at.masks);
  arguments.mask_words = static_cast<int32_t>(mask_words(vocab_size_));
  arguments.sampled = reinterpret_cast<cuda::SampledRow*>(device_area_.data() + at.sampled);
  cuda::sample(arguments, rows_, stream);
  cuda::copy_to_host(host_area_.data() + at.sampled, device_area_.data() + at.sampled,
                     rows_ * static_cast<int64_t>(sizeof(cuda::SampledRow)), stream);
}

std::optional<sampling::Choice> DeviceSampler::choice(size_t index) const {
  const Layout at = layout(vocab_size_, most_rows_);
  const cuda::SamplingRow& how = host<cuda::SamplingRow>(at.rows, most_rows_)[index];
  const cuda::SampledRow& row = host<cuda::SampledRow>(at.sampled, most_rows_)[index];
  if (row.state != cuda::SampledState::kChosen) return std::nullopt;
  sampling::Choice choice{row.token, std::numeric_limits<float>::quiet_NaN(), {}};
  if (how.alternatives < 0) return choice;
  const double normaliser =
      row.largest + std::log(static_cast<double>(row.sum) / cuda::kWeightScale);
  choice.logprob = static_cast<float>(row.logit - normaliser);
  const auto count = static_cast<size_t>(std::min<int64_t>(how.alternatives, vocab_size_));
  for (size_t i = 0; i < count; ++i)
    choice.top.push_back({row.tokens[i], static_cast<float>(row.logits[i] - normaliser)});
  return choice;
}

}  // namespace sluice
