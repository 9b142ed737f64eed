#include "kernels/cuda/plain_linear.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 256;
constexpr int kSide = 16;   // tokens, and rows of W, of a block
constexpr int kDepth = 32;  // columns at a time
constexpr int kStride = kDepth + 1;
static_assert(kThreads == kSide * kSide);

struct PlainArguments {
  const void* x;
  int64_t ldx;
  const void* w;
  int64_t m, n, k;
  const float* bias;
  void* y;
  int64_t ldy;
};

SLUICE_DEVICE float e4m3_value(uint8_t code) {
  // Exponent and mantissa in f16's places, times the difference of the biases.
  const uint16_t bits = static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7);
  if ((code & 0x7f) == 0x7f) return bits_to_float(0x7fc00000u);
  return half_to_float(bits) * 256.0f;
}

template <PlainType kType>
SLUICE_DEVICE auto value_at(const void* from, int64_t index) {
  if constexpr (kType == PlainType::kF32)
    return static_cast<const float*>(from)[index];
  else if constexpr (kType == PlainType::kF16)
    return half_to_float(static_cast<const uint16_t*>(from)[index]);
  else if constexpr (kType == PlainType::kBF16)
    return bf16_to_float(static_cast<const uint16_t*>(from)[index]);
  else if constexpr (kType == PlainType::kE4M3)
    return e4m3_value(static_cast<const uint8_t*>(from)[index]);
  else
    return static_cast<int>(static_cast<const int8_t*>(from)[index]);
}

// A thread has one token and one row.
template <PlainType kType>
SLUICE_KERNEL(kThreads)
plain_linear_kernel(PlainArguments args) {
  using Sum = decltype(value_at<kType>(nullptr, 0));
  auto* x = reinterpret_cast<Sum*>(shared_memory());  // [kSide][kStride]
  Sum* w = x + kSide * kStride;                       // likewise
  const int64_t first_row = int64_t{block_x()} * kSide;
  const int64_t first_token = int64_t{block_y()} * kSide;
  const int at_row = thread_index() % kSide;
  const int at_token = thread_index() / kSide;
  Sum sum = 0;
  for (int64_t begin = 0; begin < args.k; begin += kDepth) {
    block_sync();  // what was there has been used
    for (int i = thread_index(); i < kSide * kDepth; i += kThreads) {
      const int64_t col = begin + i % kDepth;
      const int64_t token = first_token + i / kDepth;
      const int64_t row = first_row + i / kDepth;
      const int at = i / kDepth * kStride + i % kDepth;
      x[at] =
          token < args.m && col < args.k ? value_at<kType>(args.x, token * args.ldx + col) : Sum{0};
      w[at] = row < args.n && col < args.k ? value_at<kType>(args.w, row * args.k + col) : Sum{0};
    }
    block_sync();
    for (int i = 0; i < kDepth; ++i) sum += x[at_token * kStride + i] * w[at_row * kStride + i];
  }
  const int64_t token = first_token + at_token;
  const int64_t row = first_row + at_row;
  if (token >= args.m || row >= args.n) return;
  if (args.bias) sum += static_cast<Sum>(args.bias[row]);
  static_cast<Sum*>(args.y)[token * args.ldy + row] = sum;
}

template <PlainType kType>
void run(const PlainArguments& arguments, Stream stream) {
  constexpr int64_t kSharedBytes = int64_t{2} * kSide * kStride * 4;
  const auto blocks = [](int64_t all) { return static_cast<int>((all + kSide - 1) / kSide); };
  launch("plain_linear", plain_linear_kernel<kType>, {blocks(arguments.n), blocks(arguments.m)},
         kThreads, kSharedBytes, stream, arguments);
}
}  // namespace

void plain_linear(PlainType type, const void* x, int64_t ldx, int64_t m, int64_t k, const void* w,
                  int64_t n, const float* bias, void* y, int64_t ldy, Stream stream) {
  if (m == 0 || n == 0) return;
  const PlainArguments arguments{x, ldx, w, m, n, k, bias, y, ldy};
  switch (type) {
    case PlainType::kF32: return run<PlainType::kF32>(arguments, stream);
    case PlainType::kF16: return run<PlainType::kF16>(arguments, stream);
    case PlainType::kBF16: return run<PlainType::kBF16>(arguments, stream);
    case PlainType::kE4M3: return run<PlainType::kE4M3>(arguments, stream);
    case PlainType::kInt8: return run<PlainType::kInt8>(arguments, stream);
  }
}

}  // namespace sluice::cuda
