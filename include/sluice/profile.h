#pragma once
// What a machine can do, as measured numbers: what plans are searched on. A value.
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

namespace policy {
struct Profile;
}  // namespace policy

/// What is measured, and how long.
struct ProfileOptions {
  std::string offload_dir;  ///< folder of the disk to measure; empty: the temporary folder
  int threads = 0;          ///< 0: all the process may use
  bool quick = true;        ///< ten seconds rather than a minute
  bool again = false;       ///< measures where a profile of this machine is kept, too
  bool keeps = true;        ///< keeps the result for later runs (in the user's cache folder)
  std::function<void(std::string_view)> log;  ///< what is measured, a line at a time; may be empty
};

class Profile {
 public:
  /// This machine's: the kept one, else measured with the cores and the disk for itself. Errors:
  /// kFile (folder), kResource, kCancelled.
  static Profile of_this_machine(const ProfileOptions& options = {}, std::stop_token cancel = {});
  /// A shipped profile by name, or one from a file. Errors: kUser, kFile.
  static Profile load(const std::string& name_or_path);
  /// Names of the shipped ones.
  static std::vector<std::string> names();

  std::string name() const;
  std::string description() const;
  std::string date() const;         ///< of the measurement, ISO 8601; may be empty
  std::string json() const;         ///< all of it (docs/formats/profile.md)
  int64_t memory_bytes() const;     ///< of the host
  int64_t device_bytes() const;     ///< 0 without a device
  int64_t disk_bytes() const;
  double memory_read() const;       ///< bytes a second by the host's cores
  double disk_read() const;         ///< bytes a second, of all disks together; 0: none
  double disk_write() const;
  std::string processor() const;    ///< the host's
  std::string device() const;       ///< its name; empty without one
  int threads() const;              ///< that the host's figures are for

 private:
  explicit Profile(std::shared_ptr<const policy::Profile> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const policy::Profile> impl_;
};

/// A question about a model and a machine, neither of which has to be here.
struct ForecastOptions {
  std::string hardware;  ///< a shipped profile's name, a file, or empty: this machine
  int64_t memory_budget_bytes = 0;  ///< 0: what the machine has
  int64_t device_budget_bytes = 0;
  int64_t disk_budget_bytes = 0;
  double prompt_tokens = 512;   ///< mean
  double new_tokens = 32;       ///< mean
  int64_t sequences = 0;        ///< of the job; 0: 256, with "latency" 1
  std::string objective;        ///< "throughput" (also empty), "latency" or "bounded"
  double latency_bound_seconds = 0;  ///< of "bounded"
  std::string weights;          ///< "int4", "bf16"; empty: as the model's
  std::string kv_dtype;         ///< "f16", "int8"; empty: as the weights
  bool finds_lifts = true;      ///< what twice of each resource would bring (a search each)
  std::function<void(std::string_view)> log;  ///< may be empty
};

/// What a model would do on a machine. A plain value.
struct Forecast {
  double tokens_per_second = 0;  ///< generated, over the whole job
  double latency_seconds = 0;    ///< of a block, from its start to its last token
  std::string bottleneck;        ///< the lane that limits
  std::string json;  ///< all that `sluice plan --json` says: bytes by tier, limits, policy, lifts
  std::string text;  ///< the same for people
};
/// `model`: a built-in name ("opt-175b"), a model folder, a packed store or a config.json. Errors:
/// kUser, kFile, kResource when nothing fits (with the smallest change that would), kCancelled.
Forecast forecast(const std::string& model, const ForecastOptions& options,
                  std::stop_token cancel = {});
/// Names of the built-in shapes.
std::vector<std::string> forecast_models();

}  // namespace sluice
