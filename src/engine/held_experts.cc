#include "src/engine/held_experts.h"

namespace sluice {

HeldExperts::HeldExperts(const ScheduleShape& shape) {
  for (const ScheduleSublayer& sublayer : shape.sublayers) {
    const ScheduleExperts& layer = sublayer.experts;
    auto& cache = first_.emplace_back();
    if (layer.experts == 0) continue;
    cache = ExpertCache(layer.experts, layer.slots, shape.expert_decay);
    counts_.experts += layer.experts;
    counts_.slots += layer.slots;
  }
  caches_ = first_;
}

void HeldExperts::begin_run(ScheduleGenerator& schedule, WeightStore& weights,
                            const std::stop_token& cancel) {
  if (counts_.slots == 0) return;
  if (is_running_) {
    weights.load_slots([](int64_t) {}, cancel);
    caches_ = first_;
  }
  is_running_ = true;
  for (size_t i = 0; i < caches_.size(); ++i)
    if (caches_[i]) *schedule.expert_cache(i) = *caches_[i];
}

void HeldExperts::count(const ScheduleGenerator& schedule) {
  if (counts_.slots == 0) return;
  counts_.asked = counts_.found = 0;
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (!caches_[i]) continue;
    const ExpertCache::Counts& of_layer = schedule.expert_cache(i)->counts();
    counts_.asked += of_layer.asked;
    counts_.found += of_layer.found;
  }
}

void HeldExperts::end_run(const ScheduleGenerator& schedule) {
  if (counts_.slots == 0) return;
  for (size_t i = 0; i < caches_.size(); ++i)
    if (caches_[i]) *caches_[i] = *schedule.expert_cache(i);
  is_running_ = false;
}

}  // namespace sluice
