#pragma once
// The activations that models name, for programs of layers and for kernels alike.
#include <array>
#include <cstdint>

namespace sluice {

/// A function of each value x:
///   kRelu         max(x, 0)
///   kGelu         x Phi(x), the exact form (arXiv:1606.08415)
///   kGeluTanh     x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, gelu's approximation
///   kSilu         x / (1 + e^-x)
///   kReluSquared  max(x, 0)^2 (arXiv:2109.08668)
///   kSigmoid      1 / (1 + e^-x)
/// All of them keep NaN.
enum class Activation : uint8_t { kRelu, kGelu, kGeluTanh, kSilu, kReluSquared, kSigmoid };

inline constexpr std::array kActivations = {Activation::kRelu,        Activation::kGelu,
                                            Activation::kGeluTanh,    Activation::kSilu,
                                            Activation::kReluSquared, Activation::kSigmoid};

}  // namespace sluice
