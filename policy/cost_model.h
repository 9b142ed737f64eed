#pragma once
// The cost model: seconds of each lane in one prefill and one mean decode pass of a block, as the
// sum of its terms; a pass takes as long as its busiest lane (lanes run beside each other; FlexGen,
// arXiv:2303.06865 appendix A.3, waits for the slowest task of every step instead).
// docs/cost-model.md has every term with its equation. Pure.
#include <deque>
#include <string>
#include <vector>

#include "policy/pass_model.h"
#include "policy/plan.h"
#include "policy/prediction.h"
#include "policy/profile.h"

namespace sluice::policy {

/// One term of a lane's time, for people: "weights from disk", 12.6 GiB, 4.5 s a pass.
struct CostTerm {
  Lane lane = Lane::kDiskRead;
  std::string what;
  bool is_prefill = false;
  double amount = 0;   ///< bytes, or operations for compute
  double seconds = 0;  ///< of one block
};

/// What passes of a class stream of a plan's weights, but for experts that have slots.
struct StreamedBytes {
  double disk = 0;
  double repack_seconds = 0;       ///< of what the disk brings as another tool packed it
  double small_reads_seconds = 0;  ///< beside the bytes
  double up = 0;
  double parts = 0;  ///< copies up

  void add_read(const Profile& profile, double bytes, double times);
};

/// What predictions of one model on one profile have in common, worked out once: products of a
/// size, and what plans stream whose weights lie alike. Not for several threads.
class KnownCosts {
 public:
  ProductSeconds& products() noexcept { return products_; }
  /// [class] Valid until the next call.
  const std::vector<StreamedBytes>& streamed(const Plan& plan, const Profile& profile);

 private:
  struct Streamed {
    SharedList<std::vector<PlanPart>> parts;  // a plan's own: copies of it are known by them
    std::vector<StreamedBytes> of_class;
  };
  ProductSeconds products_;
  std::deque<Streamed> streamed_;
};

/// Seconds of `plan`'s policy on `profile` for one block of `job`; `terms`, when given, gets every
/// term that is not zero. Errors: none for a validated profile.
Prediction predict(const ModelShape& model, const Plan& plan, const Profile& profile,
                   KvFormat kv_dtype, const JobShape& job, std::vector<CostTerm>* terms = nullptr);
/// The same, of the passes that sampled_passes() of the job makes. `known`: of predictions of this
/// model on this profile.
Prediction predict(const ModelShape& model, const Plan& plan, const Profile& profile,
                   KvFormat kv_dtype, const JobShape& job, const BlockPasses& block,
                   std::vector<CostTerm>* terms = nullptr, KnownCosts* known = nullptr);
/// Makes the passes that are looked at.
PassMaker sampled_passes(const ModelShape& model, const JobShape& job) noexcept;

}  // namespace sluice::policy
