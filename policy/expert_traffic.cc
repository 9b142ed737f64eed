#include "policy/expert_traffic.h"

#include <algorithm>

#include "policy/routing_model.h"

namespace sluice::policy {

namespace {
// Of a layer's experts by bytes: those where they are computed, and those multiplied in place.
struct Homes {
  double resident = 0;
  double inplace = 0;
};

Homes homes_of(const ModelShape& model, const Plan& plan, size_t sublayer, size_t pass_class) {
  double all = 0;
  Homes out;
  const SublayerShape& shape = model.sublayers[sublayer];
  for (size_t w = 0; w < shape.weights.size(); ++w) {
    const WeightShape& weight = shape.weights[w];
    if (weight.experts == 0) continue;
    const auto bytes = [&](int64_t rows) {
      return static_cast<double>(model.rows_bytes(weight, rows));
    };
    all += bytes(weight.rows);
    out.resident += bytes(plan.rows[sublayer][w].resident);
    out.inplace += bytes(plan.classes[pass_class].inplace_rows(sublayer, w));
  }
  return {out.resident / all, out.inplace / all};
}

// What is loaded of a layer whose experts have no slots.
void add_parts(const ModelShape& model, const Plan& plan, size_t sublayer, size_t pass_class,
               ExpertTraffic& out) {
  for (const PlanPart& part : plan.parts[sublayer]) {
    const WeightShape& weight = model.sublayers[sublayer].weights[static_cast<size_t>(part.weight)];
    if (weight.experts == 0 || part.expert >= 0 || !part.is_loaded_in(pass_class)) continue;
    if (part.from_disk) out.read_bytes += static_cast<double>(part.read_bytes());
    if (plan.paths.weights(part.from_disk).crosses_link())
      out.up_bytes += static_cast<double>(part.bytes);
  }
}

void add_slots(const ModelShape& model, const Plan& plan, size_t sublayer, const PassWork& pass,
               ExpertTraffic& out) {
  const ScheduleExperts& layer = plan.experts[sublayer];
  const auto one = static_cast<double>(expert_bytes(model, sublayer));
  out.slots = out.slots == 0 ? layer.slots : std::min(out.slots, layer.slots);
  const auto add = [&](double tokens) {
    const AskedExperts asked = asked_experts(layer, model.experts_per_token, tokens);
    out.asked += asked.all();
    out.asked_bytes += asked.all() * one;
    out.found_bytes += asked.resident * one;
    if (!layer.is_below)
      out.found_bytes += asked.held * one;
    else if (out.demands)
      out.inplace_bytes += asked.held * one;
  };
  if (!out.demands) add(pass.routed().independent);
  if (out.demands)
    for (const BatchWork& batch : pass.work) add(batch.independent_tokens);
  const double loads = loaded_experts(model, layer, out.demands, pass.work);
  for (const int32_t first : layer.first_parts) {
    const PlanPart& part = plan.parts[sublayer][static_cast<size_t>(first)];
    out.read_bytes += loads * static_cast<double>(part.read_bytes());
    if (layer.is_below && !out.demands)
      out.up_bytes += static_cast<double>(layer.others() * part.bytes);
  }
}

void add_evenly(const ModelShape& model, const Plan& plan, size_t sublayer, const PassWork& pass,
                ExpertTraffic& out) {
  const ExpertShare share{model.num_experts, static_cast<double>(model.experts_per_token), 0};
  const auto one = static_cast<double>(expert_bytes(model, sublayer));
  const Homes homes = homes_of(model, plan, sublayer, pass.pass_class);
  const double asked =
      static_cast<double>(share.experts) * even_share(share, pass.routed().independent);
  out.asked += asked;
  out.asked_bytes += asked * one;
  out.found_bytes += asked * one * homes.resident;
  out.inplace_bytes += asked * one * homes.inplace;
  add_parts(model, plan, sublayer, pass.pass_class, out);
}
}  // namespace

int64_t expert_bytes(const ModelShape& model, size_t sublayer) noexcept {
  int64_t bytes = 0;
  for (const WeightShape& weight : model.sublayers[sublayer].weights)
    if (weight.experts > 0) bytes += model.rows_bytes(weight, weight.expert_rows());
  return bytes;
}

double loaded_experts(const ModelShape& model, const ScheduleExperts& layer, bool demands,
                      std::span<const BatchWork> batches) noexcept {
  if (!demands) return static_cast<double>(layer.others() - layer.slots);
  double loads = 0;
  for (const BatchWork& batch : batches)
    loads += asked_experts(layer, model.experts_per_token, batch.independent_tokens).missing;
  return loads;
}

ExpertTraffic expert_traffic(const ModelShape& model, const Plan& plan, const PassWork& pass) {
  ExpertTraffic out;
  out.demands = plan.demands_experts(pass.routed());
  for (size_t i = 0; i < model.sublayers.size(); ++i) {
    if (expert_bytes(model, i) == 0) continue;
    ++out.layers;
    if (plan.experts[i].experts > 0)
      add_slots(model, plan, i, pass, out);
    else
      add_evenly(model, plan, i, pass, out);
  }
  return out;
}

}  // namespace sluice::policy
