#pragma once
// The classes of passes of a plan whose bytes have their places: who computes in a pass of so many
// tokens. A pass of few is bound by the link, which rows multiplied in place relieve, and one of
// many by the host's arithmetic; between them lies a border that the machine's rates give. Pure.
#include "policy/cost_model.h"
#include "policy/plan.h"
#include "policy/prediction.h"
#include "policy/profile.h"

namespace sluice::policy {

/// Leaves out classes that compute as the one before them does.
void drop_equal_classes(Policy& policy);

/// The longest run of new tokens of one sequence, of the job's mean context, whose attention on the
/// host takes no longer than the context's way up to the device; at least 1.
int64_t host_attention_tokens(const ModelShape& model, const Profile& profile, KvFormat kv_dtype,
                              const JobShape& job);

/// Modelled seconds of a pass of `tokens` tokens as `pass_class` computes it: of decoding sequences
/// up to as many as a block has, of prompts beyond them. At most as many as the plan's passes have.
double pass_seconds(const ModelShape& model, const Plan& plan, const Profile& profile,
                    KvFormat kv_dtype, const JobShape& job, size_t pass_class, int64_t tokens);

/// Of a plan beside a device that has experts in slots: the most tokens of a pass that is faster,
/// by the model, when it loads the experts that it asks for than when it loads all that are in no
/// slot and sends them up; at least 1, and no more than a pass has.
int64_t fastest_demand(const ModelShape& model, const Plan& plan, const Profile& profile,
                       KvFormat kv_dtype, const JobShape& job);

/// Of a plan with several classes, at sizes from 1 to a full pass; of one class empty.
PassEstimates pass_estimates(const ModelShape& model, const Plan& plan, const Profile& profile,
                             KvFormat kv_dtype, const JobShape& job);

/// `policy` with the shares in place, of its first and its last class, with which the job takes the
/// least predicted time: a linear program sees straight lines where a product's device and host
/// compute beside each other. Its placement stays as it is. As given where that gains nothing or
/// does not fit. `make_passes`: of the input's model and the job. `known`: of this model on this
/// profile.
Policy with_fastest_shares(const PlanInput& input, PlanMaker& make_plan, PassMaker& make_passes,
                           const Policy& policy, const Profile& profile, const JobShape& job,
                           KnownCosts& known);
/// The few passes that it looks at.
PassMaker fewest_passes(const ModelShape& model, const JobShape& job) noexcept;

/// `policy`, found for decode passes and larger ones, with the borders where the model crosses from
/// one class to the next, and classes between the two where shares between theirs are faster by
/// more than a twentieth; and one for passes of few of the decoding sequences likewise. Its
/// placement stays as it is. As given where it has one class.
Policy with_borders(const PlanInput& input, PlanMaker& make_plan, const Policy& policy,
                    const Profile& profile, const JobShape& job);

}  // namespace sluice::policy
