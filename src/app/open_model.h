#pragma once
// The straight way in: a model is opened once, a plan is searched for on the machine's profile, an
// engine runs that plan.
//
//   const auto model = open_model(path);
//   EngineInput input = plan_input(*model, options);
//   FoundPlan found = find_plan(*model, options, input, machine);
//   Engine engine(model, options, std::move(input), found.plan);
#include <memory>

#include "policy/prediction.h"
#include "policy/search.h"
#include "src/app/machine.h"

namespace sluice::app {

/// Errors: kFile naming what is missing or has the wrong shape or element type; kUser for positions
/// that the model can't have.
std::shared_ptr<const BoundModel> open_model(const std::filesystem::path& path,
                                             const PositionWishes& positions = {});

/// The model as a GPU runs it: for int8 activations K types of a GGUF file are repacked to formats
/// whose codes it multiplies with such. Any other as it is. Errors as open_model().
std::shared_ptr<const BoundModel> for_gpu(std::shared_ptr<const BoundModel> model,
                                          kernels::ActivationFormat activations);

/// A plan with what is expected of it.
struct FoundPlan {
  policy::Plan plan;
  std::optional<policy::Prediction> prediction;  ///< where there is a profile to expect by
  int64_t candidates = 0;                        ///< policies that were looked at; 0: no search
  double search_seconds = 0;
  std::shared_ptr<KeptProfile> kept;  ///< of this machine, where it was used
};

/// What the search is held to.
struct PlanWishes {
  policy::SearchConstraints constraints;
  /// Whole blocks in memory wherever they fit, whatever a search expects of smaller ones.
  bool prefers_memory = false;
};

/// Searches where there is something to decide: everything in memory is the best there is. A policy
/// by hand is only looked at. Errors: kResource when nothing fits, kUser, kCancelled.
FoundPlan find_plan(const BoundModel& model, const EngineOptions& options, const EngineInput& input,
                    const MachineOptions& machine, const PlanWishes& wishes = {});

}  // namespace sluice::app
