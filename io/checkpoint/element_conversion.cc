#include "io/checkpoint/element_conversion.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/checkpoint/element_conversion_avx2.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {

constexpr int64_t kBlock =
    64;  // elements; a fixed count lets compilers vectorise without being asked

// Branch-free forms of f16_to_f32 and f32_to_f16 (src/base/dtype.h), which vectorise.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const auto magnitude = static_cast<int32_t>(half & 0x7fffu);
  const int32_t normal = (magnitude << 13) + (112 << 23);  // exponent bias 15 -> 127
  // From the integer, not by scaling a subnormal f32: arithmetic on those is a hundred times
  // slower.
  const int32_t subnormal = std::bit_cast<int32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  int32_t bits = magnitude < 0x400 ? subnormal : normal;
  bits = magnitude >= 0x7c00 ? (magnitude << 13) | 0x7f800000 : bits;
  bits = magnitude > 0x7c00 ? bits | 0x400000 : bits;  // quiet, as the processor's instruction does
  return std::bit_cast<float>(sign | static_cast<uint32_t>(bits));
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const int32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112 << 23)) >> 13;
  const int32_t subnormal =
      std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  int32_t half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(half));
}

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// One block at a time through aligned locals: inputs may lie at odd addresses.
template <typename In, typename Out, typename Convert>
void convert_array(const std::byte* in, std::byte* out, int64_t count, Convert convert) {
  std::array<In, kBlock> from;
  std::array<Out, kBlock> to;
  for (; count >= kBlock; count -= kBlock) {
    std::memcpy(from.data(), in, sizeof(from));
    for (size_t i = 0; i < kBlock; ++i) to[i] = convert(from[i]);
    std::memcpy(out, to.data(), sizeof(to));
    in += sizeof(from);
    out += sizeof(to);
  }
  if (count == 0) return;
  std::memcpy(from.data(), in, static_cast<size_t>(count) * sizeof(In));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) to[i] = convert(from[i]);
  std::memcpy(out, to.data(), static_cast<size_t>(count) * sizeof(Out));
}

template <typename In, typename Load>
void convert_from(const std::byte* in, DType to, std::byte* out, int64_t count, Load load) {
  switch (to) {
    case DType::kF32: convert_array<In, float>(in, out, count, load); return;
    case DType::kF16:
      convert_array<In, uint16_t>(in, out, count,
                                  [load](In value) { return float_to_half(load(value)); });
      return;
    case DType::kBF16:
      convert_array<In, uint16_t>(in, out, count,
                                  [load](In value) { return float_to_bfloat(load(value)); });
      return;
    default: SLUICE_ASSERT(false, "callers ask can_convert first");
  }
}

template <typename T>
T load_element(std::span<const std::byte> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Is element `index` of `bytes` infinite, by its bits? NaN is not.
bool is_infinite(DType type, std::span<const std::byte> bytes, int64_t index) {
  switch (type) {
    case DType::kF64: return std::isinf(load_element<double>(bytes, index));
    case DType::kF32: return (load_element<uint32_t>(bytes, index) & 0x7fffffffu) == 0x7f800000u;
    case DType::kF16: return (load_element<uint16_t>(bytes, index) & 0x7fffu) == 0x7c00u;
    case DType::kBF16: return (load_element<uint16_t>(bytes, index) & 0x7fffu) == 0x7f80u;
    default: return false;
  }
}

// Quickly, of a whole array: is there an element of these bits, its sign apart?
template <typename Word>
bool has_magnitude(std::span<const std::byte> bytes, Word mask, Word wanted) {
  bool found = false;
  for (int64_t i = 0; i < static_cast<int64_t>(bytes.size() / sizeof(Word)); ++i)
    found |= (load_element<Word>(bytes, i) & mask) == wanted;
  return found;
}

bool has_infinite(DType type, std::span<const std::byte> bytes) {
  if (type == DType::kF32) return has_magnitude<uint32_t>(bytes, 0x7fffffffu, 0x7f800000u);
  return has_magnitude<uint16_t>(bytes, 0x7fff, type == DType::kF16 ? 0x7c00 : 0x7f80);
}

}  // namespace

bool can_convert(DType from, DType to) noexcept {
  return from == to || ((is_weight_dtype(from) || from == DType::kF64) && is_weight_dtype(to));
}

void convert_elements_portable(DType from, std::span<const std::byte> in, DType to,
                               std::span<std::byte> out) {
  const auto count = static_cast<int64_t>(in.size()) / dtype_bytes(from);
  SLUICE_ASSERT(can_convert(from, to) &&
                    count * dtype_bytes(from) == static_cast<int64_t>(in.size()) &&
                    count * dtype_bytes(to) == static_cast<int64_t>(out.size()),
                "whole elements, as many out as in");
  if (in.empty()) return;
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  switch (from) {
    case DType::kF32:
      convert_from<float>(in.data(), to, out.data(), count, [](float value) { return value; });
      return;
    case DType::kF64:
      convert_from<double>(in.data(), to, out.data(), count,
                           [](double value) { return static_cast<float>(value); });
      return;
    case DType::kF16:
      convert_from<uint16_t>(in.data(), to, out.data(), count,
                             [](uint16_t value) { return half_to_float(value); });
      return;
    case DType::kBF16:
      convert_from<uint16_t>(in.data(), to, out.data(), count,
                             [](uint16_t value) { return bf16_to_f32(value); });
      return;
    default: SLUICE_ASSERT(false, "callers ask can_convert first");
  }
}

int64_t first_overflow(DType from, std::span<const std::byte> in, DType to,
                       std::span<const std::byte> out) noexcept {
  if (from == to || from == DType::kF16 || !is_weight_dtype(to) || !has_infinite(to, out))
    return -1;
  const auto count = static_cast<int64_t>(out.size()) / dtype_bytes(to);
  for (int64_t i = 0; i < count; ++i)
    if (is_infinite(to, out, i) && !is_infinite(from, in, i)) return i;
  return -1;
}

void convert_elements(DType from, std::span<const std::byte> in, DType to,
                      std::span<std::byte> out) {
  const int64_t in_element = dtype_bytes(from);
  const int64_t out_element = dtype_bytes(to);
  const int64_t whole = round_down(static_cast<int64_t>(in.size()) / in_element, 8);
  const bool is_enough = static_cast<int64_t>(out.size()) >= whole * out_element;
  int64_t done = 0;
  if (whole > 0 && is_enough && has_avx2_conversion() &&
      convert_avx2(from, in.data(), to, out.data(), whole))
    done = whole;
  convert_elements_portable(from, in.subspan(static_cast<size_t>(done * in_element)), to,
                            out.subspan(static_cast<size_t>(done * out_element)));
}

}  // namespace sluice::io
