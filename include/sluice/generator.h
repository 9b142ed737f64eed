#pragma once
// Runs a plan. Several may be in one process, each with threads and budgets of its own (a draft
// beside its target); one thread at a time uses one of them.
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "sluice/batch.h"
#include "sluice/plan.h"
#include "sluice/stats.h"

namespace sluice {

class Generator {
 public:
  /// Reserves everything that the plan names. Errors: kResource when the system does not give it.
  explicit Generator(const Plan& plan);
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Reads the resident weights; run() does it when it has not been done. Errors: kFile,
  /// kCancelled.
  void load(std::stop_token cancel = {});

  /// Runs all requests of `source`; returns when the last has ended. On an error or a cancel what
  /// runs ends as kCancelled before it is thrown. May be called again.
  void run(Source& source, Sink& sink, std::stop_token cancel = {});

  /// One prompt's continuation. `on_token` sees each token as it comes and ends the sequence with
  /// false; it may be empty. Errors: kUser for a prompt that can't run.
  std::vector<int32_t> generate(std::vector<int32_t> prompt, const Sampling& sampling,
                                const std::function<bool(int32_t)>& on_token = {},
                                std::stop_token cancel = {});

  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
