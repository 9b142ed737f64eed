// What a plan says to the engine and to the simulator alike: the shape of its schedule, and the
// limits that its passes are cut by.
#include <algorithm>

#include "policy/plan.h"

namespace sluice::policy {

ScheduleShape schedule_shape(const ModelShape& model, const Plan& plan) {
  ScheduleShape shape;
  shape.paths = plan.paths;
  shape.weight_ring_bytes = plan.ring_bytes;
  shape.host_ring_bytes = plan.host_ring_bytes;
  shape.kv_slots = kKvSlots;
  shape.activation_slots = kActivationSlots;
  shape.attention_slots = kAttentionSlots;
  shape.mixes_attention =
      plan.host_attends() && (plan.policy.host_attention_tokens > 0 ||
                              plan.policy.any_attends_on(AttentionPlace::kDevice));
  for (size_t i = 0; i < model.sublayers.size(); ++i) {
    ScheduleSublayer& sublayer = shape.sublayers.emplace_back();
    sublayer.has_attention = model.sublayers[i].kind == SublayerKind::kAttention;
    const StatePlace& at = model.sublayers[i].state;
    sublayer.state_group = at.group;
    for (size_t source = 0; source < i && at.is_reader; ++source)
      if (model.sublayers[source].state == StatePlace{at.group, at.layer})
        sublayer.reads_from = static_cast<int32_t>(source);
    for (const PlanPart& part : plan.parts[i])
      sublayer.parts.push_back({part.bytes, part.from_disk, part.classes, part.expert});
    if (!plan.experts.empty()) sublayer.experts = plan.experts[i];
  }
  return shape;
}

PassLimits pass_limits(const Plan& plan, size_t pass_class) {
  PassLimits limits;
  limits.micro_batch_sequences = plan.policy.micro_batch_sequences;
  limits.micro_batch_tokens = plan.micro_batch_rows(pass_class);
  limits.pass_tokens = plan.pass_tokens;
  limits.page_tokens = plan.policy.page_tokens;
  limits.attends_on_host = plan.host_attends(pass_class);
  limits.host_attention_tokens = plan.policy.host_attention_tokens;
  const bool brings_up = !limits.attends_on_host || limits.host_attention_tokens > 0;
  const bool stops_between = plan.paths.state.stops_between() > 0;
  for (const KvPlan& kv : plan.kv)
    limits.groups.push_back({kv.state,
                             kv.state.is_recurrent() ? kMostRecurrentPages
                             : kv.ring_pages > 0     ? kv.ring_pages
                                                     : INT64_MAX,
                             {brings_up ? kv.slot_pages : INT64_MAX,
                              stops_between ? kv.host_slot_pages : kv.slot_pages}});
  return limits;
}

}  // namespace sluice::policy
