#pragma once
// The list that family.cc shows: one maker for each family file.
#include <memory>

#include "src/model/family.h"

namespace sluice {

std::unique_ptr<FamilyModel> make_llama(const ModelConfig& config);
std::unique_ptr<FamilyModel> make_opt(const ModelConfig& config);

}  // namespace sluice
