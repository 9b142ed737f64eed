#pragma once
// Norms, activations, softmax and conversions of rows.
#include "kernels/cpu/generic/vector.h"
#include "src/base/activation.h"

namespace sluice::kernels {
namespace {

void rms_norm_rows(const float* x, const float* gain, float eps, float* y, int64_t rows,
                   int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    VecF sums = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) sums += load(x + i) * load(x + i);
    float sum = sum_lanes(sums);
    for (; i < cols; ++i) sum += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(cols) + eps);
    for (i = 0; i + kLanes <= cols; i += kLanes)
      store(y + i, gain ? load(x + i) * factor * load(gain + i) : load(x + i) * factor);
    for (; i < cols; ++i) y[i] = x[i] * factor * (gain ? gain[i] : 1.0f);
  }
}

void layer_norm_rows(const float* x, const float* gain, const float* bias, float eps, float* y,
                     int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row, x += cols, y += cols) {
    VecF sums = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) sums += load(x + i);
    float sum = sum_lanes(sums);
    for (; i < cols; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(cols);
    VecF squares = splat(0);
    for (i = 0; i + kLanes <= cols; i += kLanes) {
      const VecF d = load(x + i) - mean;
      squares += d * d;
    }
    float variance = sum_lanes(squares);
    for (; i < cols; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / __builtin_sqrtf(variance / static_cast<float>(cols) + eps);
    for (i = 0; i + kLanes <= cols; i += kLanes) {
      VecF v = (load(x + i) - mean) * factor;
      if (gain) v *= load(gain + i);
      if (bias) v += load(bias + i);
      store(y + i, v);
    }
    for (; i < cols; ++i) {
      const float v = (x[i] - mean) * factor * (gain ? gain[i] : 1.0f);
      y[i] = v + (bias ? bias[i] : 0.0f);
    }
  }
}

void add_range(float* y, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, load(y + i) + load(x + i));
  for (; i < n; ++i) y[i] += x[i];
}

// x / (1 + e^-x); -x is at most 88 before e^ overflows, where the quotient is 0 anyway.
inline VecF silu_vec(VecF x) {
  const VecF negated = -x;
  const VecF bounded = negated > splat(88.0f) ? splat(88.0f) : negated;
  return x / (1.0f + exp_vec(bounded));
}

// 1 / (1 + e^-x), with the bound of silu_vec.
inline VecF sigmoid_vec(VecF x) {
  const VecF negated = -x;
  return 1.0f / (1.0f + exp_vec(negated > splat(88.0f) ? splat(88.0f) : negated));
}

// Columns past the end are zeros.
void clamped_gate_range(float limit, float alpha, const float* biases, const float* gate,
                        const float* up, float* y, int64_t n) {
  const VecF high = splat(limit), low = splat(-limit);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    VecF g = {}, u = {};
    if (count == kLanes) {
      g = load(gate + i);
      u = load(up + i);
    } else {
      for (int lane = 0; lane < count; ++lane) {
        g[lane] = gate[i + lane];
        u[lane] = up[i + lane];
      }
    }
    if (biases) {
      VecF of_gate = {}, of_up = {};
      for (int lane = 0; lane < count; ++lane) {
        of_gate[lane] = biases[2 * (i + lane)];
        of_up[lane] = biases[2 * (i + lane) + 1];
      }
      g += of_gate;
      u += of_up;
    }
    g = g > high ? high : g;
    u = u > high ? high : u < low ? low : u;
    const VecF out = (u + 1.0f) * g * sigmoid_vec(g * alpha);
    if (count == kLanes)
      store(y + i, out);
    else
      for (int lane = 0; lane < count; ++lane) y[i + lane] = out[lane];
  }
}

// Keeps NaN, as x > 0 ? x : 0 would not.
inline VecF relu_vec(VecF x) { return x < splat(0) ? splat(0) : x; }
inline VecF relu_squared_vec(VecF x) { return x < splat(0) ? splat(0) : x * x; }

// 0.5 x (1 + tanh(u)) = x / (1 + e^(-2u)),  u = sqrt(2/pi) (x + 0.044715 x^3)
inline VecF gelu_tanh_vec(VecF x) {
  const VecF u2 = x * (1.0f + 0.044715f * x * x) * 1.5957691216057308f;
  const VecF negated = -u2;
  return x / (1.0f + exp_vec(negated > splat(88.0f) ? splat(88.0f) : negated));
}

// tanh(u) = (e^2u - 1) / (e^2u + 1); near 0, where that loses all digits, Lambert's continued
// fraction u / (1 + u^2 / (3 + u^2 / (5 + u^2 / (7 + u^2 / 9)))): up to 0.8 within 1e-8 of it.
inline VecF tanh_vec(VecF u) {
  const VecF squared = u * u;
  const VecF u2 = u * 2.0f;
  const VecF power = exp_vec(u2 > splat(88.0f) ? splat(88.0f) : u2);
  const auto is_small = max_of(u, -u) < splat(0.8f);
  const VecF above = is_small ? u * ((squared + 105.0f) * squared + 945.0f) : power - 1.0f;
  const VecF below = is_small ? (squared * 15.0f + 420.0f) * squared + 945.0f : power + 1.0f;
  return above / below;
}

// cap tanh(x / cap), within some roundings of itself. Not inlined: products and sums would be fused
// in one place and not in another, so that a score were other bits at the end of a row.
[[gnu::noinline]] VecF soft_cap_vec(VecF x, float cap) { return cap * tanh_vec(x / cap); }

void soft_cap_range(float* x, float cap, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, soft_cap_vec(load(x + i), cap));
  for (; i < n; ++i) x[i] = soft_cap_vec(splat(x[i]), cap)[0];
}

// x Phi(x), Phi(-z) = erfc(z / sqrt 2) / 2. erfc(z) = t e^(-z^2 + p(t)), t = 1 / (1 + z / 2): p of
// degree 9 fitted to 6.3e-8 over z in [0, 13] at Chebyshev points; beyond that e^ is 0 in f32.
inline VecF gelu_erf_vec(VecF x) {
  const VecF z = (x < splat(0) ? -x : x) * 0.70710678118654752f;
  const VecF t = 1.0f / (1.0f + 0.5f * z);
  VecF p = splat(0.16209560632705688f);
  p = p * t - 0.7733697891235352f;
  p = p * t + 1.3719552755355835f;
  p = p * t - 0.978760838508606f;
  p = p * t + 0.149587020277977f;
  p = p * t - 0.11851032078266144f;
  p = p * t + 0.07441247254610062f;
  p = p * t + 0.3785354197025299f;
  p = p * t + 0.9995465278625488f;
  p = p * t - 1.2654913663864136f;
  const VecF upper = 0.5f * t * exp_vec(p - z * z);
  return x < splat(0) ? x * upper : x - x * upper;
}

template <VecF (*kActivation)(VecF)>
void gate_by(const float* gate, const float* up, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF g = kActivation(load(gate + i));
    store(y + i, up ? g * load(up + i) : g);
  }
  for (; i < n; ++i) {
    const float g = kActivation(splat(gate[i]))[0];
    y[i] = up ? g * up[i] : g;
  }
}

void gate_range(Activation activation, const float* gate, const float* up, float* y, int64_t n) {
  switch (activation) {
    case Activation::kRelu: return gate_by<relu_vec>(gate, up, y, n);
    case Activation::kGelu: return gate_by<gelu_erf_vec>(gate, up, y, n);
    case Activation::kGeluTanh: return gate_by<gelu_tanh_vec>(gate, up, y, n);
    case Activation::kSilu: return gate_by<silu_vec>(gate, up, y, n);
    case Activation::kReluSquared: return gate_by<relu_squared_vec>(gate, up, y, n);
    case Activation::kSigmoid: return gate_by<sigmoid_vec>(gate, up, y, n);
  }
}

void scale_range(float* x, float factor, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) * factor);
  for (; i < n; ++i) x[i] *= factor;
}

float max_range(const float* x, int64_t n) {
  float maximum = -__builtin_inff();
  int64_t i = 0;
  if (n >= kLanes) {
    VecF many = load(x);
    for (; i + kLanes <= n; i += kLanes) many = max_of(many, load(x + i));
    maximum = max_lane(many);
  }
  for (; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

void softmax_row(float* x, int64_t n) {
  const float maximum = max_range(x, n);
  VecF sums = splat(0);
  float sum = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF e = exp_vec(load(x + i) - maximum);
    store(x + i, e);
    sums += e;
  }
  for (; i < n; ++i) {
    x[i] = exp_one(x[i] - maximum);
    sum += x[i];
  }
  scale_range(x, 1.0f / (sum + sum_lanes(sums)), n);
}

template <typename From>
void widen(const void* source, float* to, int64_t n) {
  const char* p = static_cast<const char*>(source);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, From::vec(p + i * From::kBytes));
  for (; i < n; ++i) to[i] = From::one(p + i * From::kBytes);
}

void to_f32(DType from, const void* source, float* to, int64_t n) {
  if (from == DType::kF32)
    widen<FromF32>(source, to, n);
  else if (from == DType::kF16)
    widen<FromF16>(source, to, n);
  else
    widen<FromBf16>(source, to, n);
}

void from_f32(DType to, const float* source, void* destination, int64_t n) {
  char* p = static_cast<char*>(destination);
  if (to == DType::kF32) {
    __builtin_memmove(p, source, static_cast<size_t>(n) * 4);
    return;
  }
  const bool is_half = to == DType::kF16;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (is_half)
      store_f16(p + 2 * i, load(source + i));
    else
      *reinterpret_cast<VecH*>(p + 2 * i) = round_bf16(load(source + i));
  }
  for (; i < n; ++i) {
    const uint16_t bits = is_half ? f32_to_f16(source[i]) : round_bf16(splat(source[i]))[0];
    __builtin_memcpy(p + 2 * i, &bits, 2);
  }
}

}  // namespace
}  // namespace sluice::kernels
