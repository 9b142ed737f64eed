#pragma once
// How much the errors of each matrix change what the model says. Every matrix that may be quantised
// gets a copy of some text, and in that copy its products, and no others, come out as if it had
// been quantised: copies are sequences of one batch, so that weights are read as often for all of
// them as for one. Not thread safe.
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <utility>

#include "kernels/quantise.h"
#include "src/app/scoring.h"
#include "src/engine/engine.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// By index of the sublayer and of the matrix in it: the mean Kullback-Leibler divergence of the
/// next tokens over the mean squared error of a token's output rows (of experts, of all that it
/// goes to). For small errors both grow alike, and those of several matrices add up.
using ProductEffects = std::map<std::pair<size_t, size_t>, double>;

/// Of the text that copies are made of: windows, and tokens of each, at most.
constexpr size_t kEffectWindows = 2;
constexpr size_t kEffectTokens = 256;

/// Errors as of int4 with groups of 128, without a view to inputs. Runs copies of windows evenly
/// chosen from `windows`; takes memory for one window's logits beside the engine's. Errors: those
/// of Engine::open and score(); kUser when a matrix is quantised already.
ProductEffects measure_effects(
    const BoundModel& model, EngineOptions options, std::span<const ScoredSequence> windows,
    const std::function<void(int64_t done, int64_t total)>& progress = {},
    std::stop_token cancel = {});

}  // namespace sluice::app
