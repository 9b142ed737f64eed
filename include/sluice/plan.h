#pragma once
// Where everything of a model will lie and how it moves: found for options, looked at, run as it is
// by a Generator. A handle; copies share it, any thread may look.
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "sluice/model.h"
#include "sluice/options.h"

namespace sluice {

class Plan {
 public:
  /// Searches for a plan where there is something to decide; reserves and reads nothing. `cancel`
  /// ends the measuring of a machine that has no profile yet. Errors: kUser for options that make
  /// no sense together or with the model, kResource when nothing fits (with the smallest change
  /// that would), kDevice, kCancelled.
  static Plan find(const Model& model, const Options& options, std::stop_token cancel = {});

  std::string policy() const;        ///< JSON, as Options::policy takes it
  std::string table() const;         ///< every use of every tier, a line each
  int64_t memory_bytes() const;      ///< of the host's
  int64_t device_bytes() const;      ///< 0 without a device
  int64_t disk_bytes() const;        ///< of offload files
  int64_t streamed_bytes() const;    ///< of weights, read from disk in every pass
  int64_t context_tokens() const;    ///< longest sequence that it takes
  /// What the machine's profile promises; nothing where none was needed.
  std::optional<double> expected_tokens_per_second() const;
  int64_t sequences() const;           ///< that run together, at most
  int64_t memory_budget_bytes() const; ///< what memory_bytes() had to fit in

 private:
  friend class Generator;
  friend class Session;
  struct Found;
  explicit Plan(std::shared_ptr<const Found> found) : found_(std::move(found)) {}
  std::shared_ptr<const Found> found_;
};

}  // namespace sluice
