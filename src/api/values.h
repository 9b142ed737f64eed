#pragma once
// The library's values as the engine takes and gives them.
#include <sluice/batch.h>

#include <optional>
#include <string>

#include "src/base/kv_format.h"
#include "src/base/weight_format.h"
#include "src/sampling/params.h"
#include "src/sampling/sampler.h"

namespace sluice {

/// Errors: kUser naming the field that is out of range.
sampling::SamplingParams params_of(const Sampling& sampling);
/// Of an option `weights`. Errors: kUser for what is no format.
WeightFormat weights_of(const std::string& weights);
/// Of an option `kv_dtype`; nothing where it is empty. Errors: kUser for what is no format.
std::optional<KvFormat> kv_dtype_of(const std::string& kv_dtype);
/// The same choice.
Choice choice_of(const sampling::Choice& choice);

}  // namespace sluice
