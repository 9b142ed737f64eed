#pragma once
// Makes a policy's placement fit the budgets, and use them: the linear program's straight lines
// know neither granules nor the rings and work spaces that a placement brings. Pure but for the
// plans that `make_plan` keeps.
#include <optional>

#include "policy/plan.h"
#include "policy/search.h"

namespace sluice::policy {

class Fitter {
 public:
  /// Both outlive it.
  Fitter(const SearchRequest& request, PlanMaker& make_plan)
      : request_(request),
        make_plan_(make_plan),
        has_device_(request.input.device_budget_bytes > 0) {}

  /// What the device lacks goes to the host, what the host lacks to disk (where there is none to
  /// the device), until the plan fits. Nothing: it does not.
  std::optional<Plan> shrink(Policy policy);
  /// Memory that is without a use holds what is streamed from disk.
  Plan grow(Plan plan);
  /// And the device's what the host has: lanes that are not the slowest, which the linear program
  /// asks nothing of, are waited for all the same where a block has few micro-batches.
  Plan fill_device(Plan plan);

  /// No more is multiplied in host memory than lies there.
  static void keep_inplace_in_host(Policy& policy);

 private:
  bool move_up(Policy& policy, double share) const;
  void move_down(Policy& policy, double share, bool from_device) const;

  const SearchRequest& request_;
  PlanMaker& make_plan_;
  const bool has_device_;
};

}  // namespace sluice::policy
