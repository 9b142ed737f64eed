// Plans for GPUs that are not here estimate their work space; what an engine on one would ask for
// is the measure.
#include <gtest/gtest.h>

#include "src/app/plan_request.h"
#include "src/engine/cuda/device_areas.h"
#include "src/engine/runners/workspace_areas.h"
#include "src/model/planning_shapes.h"

namespace sluice::testing {
namespace {

TEST(WorkspaceEstimate, IsNearWhatTheEngineTakes) {
  for (const char* name : {"opt-1.3b", "opt-30b", "llama-3-8b", "llama-3.1-70b"})
    for (const char* weights : {"bf16", "int4"})
      for (const int64_t tokens : {1, 16, 512, 4096}) {
        ModelShape shape = planning_shape(name).value();
        shape.set_weights(parse_weight_format(weights).value());
        const AttentionShapes attention = attention_shapes(shape, DType::kBF16, 16, 1, 4096);
        const DeviceNeed need{&shape, attention, tokens, {132}, kernels::ActivationFormat::k16Bit,
                              true};
        const auto real = static_cast<double>(device_workspace_bytes(need));
        const auto guess = static_cast<double>(app::gpu_workspace_estimate(shape, tokens));
        EXPECT_LE(real, 1.08 * guess) << name << " " << weights << ", " << tokens << " tokens";
        EXPECT_LE(guess, real + 64e6) << name << " " << weights << ", " << tokens << " tokens";
      }
}

}  // namespace
}  // namespace sluice::testing
