#pragma once
// What a public Plan holds: everything that an engine is made of.
#include <sluice/plan.h>

#include "src/app/named_adapters.h"
#include "src/app/open_model.h"

namespace sluice {

/// What a plan of the library holds.
struct Plan::Found {
  std::shared_ptr<const BoundModel> model;
  EngineOptions options;
  EngineInput input;
  app::FoundPlan plan;
  std::vector<app::NamedAdapter> adapters;
};

}  // namespace sluice
