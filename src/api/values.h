#pragma once
// The library's values as the engine takes and gives them.
#include <sluice/batch.h>

#include <string>

#include "src/base/weight_format.h"
#include "src/sampling/params.h"
#include "src/sampling/sampler.h"

namespace sluice {

/// Errors: kUser naming the field that is out of range.
sampling::SamplingParams params_of(const Sampling& sampling);
/// Of an option `weights`. Errors: kUser for what is no format.
WeightFormat weights_of(const std::string& weights);
/// The same choice.
Choice choice_of(const sampling::Choice& choice);

}  // namespace sluice
