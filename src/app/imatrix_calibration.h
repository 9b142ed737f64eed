#pragma once
// llama.cpp's importance matrices as calibrations: what is known of a model's inputs without
// running it. Pure; thread safe.
#include <filesystem>
#include <string>

#include "io/checkpoint/imatrix.h"
#include "src/app/activation_scaling.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// Mean squares of the model's linear layers by GGUF's names; magnitudes are their roots. Of
/// experts each one's, nothing of those that no token went to. An untied head may be missing, as
/// files have it seldom. Errors: kUser naming the entry and `path` where a matrix has none, one has
/// another size than the model's, the file has layers past the model's last, or the family has no
/// names in GGUF.
Calibration calibration_of(const io::Imatrix& imatrix, const BoundModel& model,
                           const std::filesystem::path& path);

}  // namespace sluice::app
