#pragma once
// What people ask before they buy: which models a machine runs and how fast, and the smallest
// change of a machine that makes a model fast enough. `sluice plan` prints it.
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "src/app/plan_report.h"
#include "src/app/plan_request.h"

namespace sluice::app {

/// A model in one format on a machine.
struct Fit {
  std::string model;
  std::string weights;    ///< their format
  double parameters = 0;  ///< of the model
  int64_t weight_bytes = 0;
  TierBytes placed;     ///< weights, for one user
  double one_user = 0;  ///< new tokens a second; 0: it does not run
  double together = 0;  ///< the same of FitsQuestion::together sequences at a time; 0: not asked
  std::string refusal;  ///< why it does not run
};

/// Which models, on which machine.
struct FitsQuestion {
  const policy::Profile* profile = nullptr;
  int64_t device_bytes = 0, host_bytes = 0;  ///< budgets; 0: the profile's
  policy::JobShape job;                      ///< lengths
  int64_t together = 16;                     ///< sequences, beside one user; 0: not asked
  double at_least = 0;                       ///< tokens a second of one user
  std::vector<std::string> models;           ///< built-in names
  /// Of the weights; nothing: as the model is published.
  std::vector<std::optional<WeightFormat>> formats;
  std::optional<KvFormat> kv_dtype;
};

/// Tells `found` of each model and format that reaches `at_least`, the largest models first, of a
/// model the first format first. Errors: kCancelled.
void find_fits(const FitsQuestion& question, const std::stop_token& stop,
               const std::function<void(const Fit&)>& found);

/// What a part costs, by the words of `part_of`: "memory" (a GiB), "disk-7" (one that reads 7
/// GB/s), "rtx-4090" (a machine's device, by its profile's name), "format" (0).
using PartPrices = std::map<std::string, double>;

/// One part of a change.
struct ChangedPart {
  enum class Kind : uint8_t { kFormat, kMemory, kDisk, kDevice };
  Kind kind = Kind::kFormat;
  std::string what;             ///< "64GiB of memory", "rtx-4090", "weights in int4"
  std::optional<double> price;  ///< none: not said
};
/// Parts that together reach the rate, and the rate they reach.
struct Change {
  std::vector<ChangedPart> parts;  ///< empty: the machine as it is
  double tokens_per_second = 0;
  std::optional<double> price() const;  ///< of all parts; none where one has none
};

/// The job is `question`'s, its model and machine as they are.
struct TargetQuestion {
  PlanQuestion question;
  double tokens_per_second = 0;
  PartPrices prices;
};
/// What was found, cheapest first where prices are said, else what changes least first: formats
/// before memory, memory before disks, disks before devices, one part before two.
struct TargetAnswer {
  double as_it_is = 0;  ///< tokens a second; 0: it does not run
  std::vector<Change> changes;
};
/// Each change is the smallest of its kinds that reaches the rate: a format of most bits, the least
/// memory, the slowest disk; of devices each. Of two parts neither does alone, nor a smaller first
/// with the second. Errors: those of plan_request() but for lack of room, kCancelled.
TargetAnswer find_target(const TargetQuestion& question, const std::stop_token& stop);

/// "0.60/h", money for an hour of the machine; or "450W@0.30/kWh", for what it draws. Errors:
/// kUser.
double parse_hour_price(const std::string& text);
/// Money for a million new tokens at so many a second.
double price_of_million(double hour_price, double tokens_per_second);

}  // namespace sluice::app
