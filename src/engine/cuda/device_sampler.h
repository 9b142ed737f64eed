#pragma once
// Tokens chosen on the GPU from rows of logits that stay there: what each request asks for goes up,
// its token and the logprobs it wants come back. One thread.
#include <optional>
#include <span>

#include "kernels/cuda/sampling.h"
#include "src/engine/runners/sublayer_runner.h"

namespace sluice {

class DeviceSampler {
 public:
  /// On the device, and as many pinned in host memory.
  static int64_t area_bytes(int64_t vocab_size, int64_t rows);
  /// `rows`: most that are chosen at a time.
  DeviceSampler(int64_t vocab_size, int64_t rows, std::span<std::byte> device,
                std::span<std::byte> host);

  /// A new set of rows; what was queued has run.
  void begin() noexcept;
  /// Row `row` of the logits. False: it is the host's, for how it is chosen or because it has
  /// more changes than there is room for.
  bool add(int64_t row, const TokenRequest& request);
  /// Chooses a token for each row added, from logits [.., vocab_size].
  void queue(float* logits, cuda::Stream stream);
  /// Of the row added as number `index`, once the stream has been waited for; nothing: there is no
  /// token to choose, and the host says why.
  std::optional<sampling::Choice> choice(size_t index) const;

 private:
  template <class T>
  std::span<T> host(int64_t begin, int64_t count) const;

  int64_t vocab_size_;
  int64_t most_rows_;
  std::span<std::byte> device_area_;
  std::span<std::byte> host_area_;
  sampling::Workspace workspace_;
  int64_t rows_ = 0;
  int64_t changes_ = 0;
  int64_t masks_ = 0;
};

}  // namespace sluice
