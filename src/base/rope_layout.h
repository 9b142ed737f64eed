#pragma once
// Which elements of a head rotary positions turn together. Read by nvcc too.
#include <cstdint>

namespace sluice {

enum class RopeLayout : uint8_t {
  kHalves,  ///< element j and j + rotated / 2, as Hugging Face's rotate_half
  kPairs    ///< elements 2 j and 2 j + 1 (GPT-J, GLM, Cohere)
};

}  // namespace sluice
