// Room in the GPU's workspace for what a task sends.
#include "src/engine/cuda/device_areas.h"

#include <gtest/gtest.h>

#include "kernels/state_run.h"
#include "src/engine/runners/workspace_areas.h"
#include "src/model/planning_shapes.h"

namespace sluice::testing {
namespace {

TEST(DeviceAreas, HaveRoomForRunsOfStates) {
  ModelShape shape = planning_shape("llama-3-8b").value();
  const AttentionShapes attention = attention_shapes(shape, DType::kF16, 16, 1, 4096);
  for (const int64_t tokens : {1, 7, 512}) {
    const auto bytes = [&] {
      return task_table_bytes(
          {&shape, attention, tokens, {132}, kernels::ActivationFormat::k16Bit, false});
    };
    const LayerState kv = shape.state_groups.front().state;
    const int64_t without = bytes();
    std::vector<LayerState> states(static_cast<size_t>(shape.num_layers), kv);
    for (size_t layer = 0; layer < states.size(); layer += 2)
      states[layer] = recurrent_state({16, 32, 128, 128, 4});
    shape.set_states(states);
    // For a convolution and for a rule, each from a line of 256 bytes on.
    const int64_t each = tokens * static_cast<int64_t>(sizeof(kernels::StateRun));
    EXPECT_GE(bytes() - without, 2 * (each + 256)) << tokens;
    shape.set_states(kv);
  }
}

// Kernels read rows of 16 bits to the end of the last group, where zeros must be.
TEST(DeviceAreas, RowsOf16BitsEndWithTheirGroups) {
  for (const char* name : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q4_1", "q5_1", "iq1", "iq2",
                           "int4-g128", "int4", "int8", "nf4", "fp8", "mxfp4"})
    for (int64_t cols = 1; cols < 1100; cols += cols < 300 ? 1 : 37)
      EXPECT_GE(narrow_stride(cols), parse_weight_format(name).value().padded_columns(cols))
          << name << ", " << cols;
  EXPECT_EQ(narrow_stride(4096), 4096);
}

}  // namespace
}  // namespace sluice::testing
