#pragma once
// The passes that the engine would make of a block of equal sequences, cut by the same rules
// (src/schedule/pass_cut.h; the tests hold the two against each other). Pure.
#include <list>
#include <vector>

#include "policy/layer_cost.h"
#include "policy/plan.h"
#include "policy/prediction.h"
#include "src/schedule/schedule.h"

namespace sluice::policy {

/// One pass: what each micro-batch moves and computes. Of a plan with several classes the weights
/// that load ahead of the next pass are those of its class.
struct PassWork {
  std::vector<MicroBatchLoad> loads;
  std::vector<BatchWork> work;
  size_t pass_class = 0;  ///< by its tokens
  double passes = 1;      ///< of the block, that it stands for: it has the work of their mean
  bool is_prefill = false;
  bool more_follow = true;

  int64_t tokens() const noexcept { return routed().all; }
  /// Independent tokens are counted in each micro-batch.
  RoutedTokens routed() const noexcept;
};

/// The passes of one block of `job` under `plan`, cut into micro-batches as the engine cuts them.
/// Long prefills and decodes are sampled: so many passes of each stand for the block's, of prefills
/// so many full ones and the last (policy/pass_samples.h), of decodes some that are spread evenly.
struct BlockPasses {
  std::vector<PassWork> passes;  ///< prefill, then decode
  size_t prefill_passes = 0;     ///< of `passes`
  int64_t sequences = 0;
};
BlockPasses block_passes(const ModelShape& model, const Plan& plan, const JobShape& job,
                         int64_t most_prefill, int64_t most_decode);

/// Makes the passes of one job under one plan after the other, as block_passes() does. Plans of one
/// block that differ only in where weights lie, or in which passes ask for experts, have the same
/// ones: they are cut once, and those of the last few plans are kept. Not for several threads.
class PassMaker {
 public:
  /// `model` and `job` stay where they are, and as they are.
  PassMaker(const ModelShape& model, const JobShape& job, int64_t most_prefill,
            int64_t most_decode) noexcept
      : model_(model), job_(job), most_prefill_(most_prefill), most_decode_(most_decode) {}
  /// Valid until the next call.
  const BlockPasses& operator()(const Plan& plan);

 private:
  // What of a plan's KV block_passes() reads.
  struct Pages {
    int64_t all;
    int64_t lower;
    int64_t on_disk;
    int64_t of_page;
    bool operator==(const Pages&) const = default;
  };
  // All that it reads, beside model and job.
  struct Input {
    Policy policy;  // without what says where weights lie and who asks for them
    bool has_device = false;
    bool crosses_link = false;
    int64_t pass_tokens = 0;
    std::vector<Pages> pages;  // by group
    bool operator==(const Input&) const = default;
  };
  static Input input_of(const Plan& plan);
  struct Made {
    Input input;
    BlockPasses passes;
  };
  // The corners of a linear program have so many different ones, and some to spare.
  static constexpr size_t kKept = 8;

  const ModelShape& model_;
  const JobShape& job_;
  int64_t most_prefill_;
  int64_t most_decode_;
  std::list<Made> made_;  // the last one that was asked for first
};

}  // namespace sluice::policy
