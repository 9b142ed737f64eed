#pragma once
// The machine that a run is planned on: its kept profile, measured where there is none, or a
// profile that somebody gives; and what a run teaches the kept one.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "policy/profile.h"
#include "src/engine/engine.h"
#include "src/profile/learn.h"
#include "src/profile/other_load.h"

namespace sluice::app {

/// Whose profile a plan is made on.
enum class ProfileSource : uint8_t {
  kAsNeeded,  ///< this machine's; one is measured only where there is something to decide
  kThis,      ///< this machine's
  kGiven,     ///< MachineOptions::profile
  kNone       ///< no search: the budget is filled
};

/// What is known of the machine before it is looked at.
struct MachineOptions {
  ProfileSource source = ProfileSource::kAsNeeded;
  policy::Profile profile;   ///< of kGiven
  std::string profile_name;  ///< what errors call it
  std::string offload_dir;   ///< whose disk the profile is of; empty: the temporary folder
  int threads = 0;           ///< of compute; 0: all the process may use
  /// Measures the GPU of a backend into a profile; needed with EngineOptions::backend.
  std::function<policy::Profile(const policy::Profile& machine, Backend& backend)> measure_backend;
  std::function<void(std::string_view)> tell;  ///< a line at a time; may be empty
  std::stop_token cancel;                      ///< ends a first measurement
};

/// This machine's profile, as it learns from a run that was planned with it.
class KeptProfile {
 public:
  KeptProfile(std::filesystem::path path, int threads);
  /// The run begins: what others do with the cores counts from here.
  void begin() { others_.begin(); }
  /// Takes what the run found; a large change is told. `model_path`: whether it lies on the
  /// profile's disk. What can't be written is told.
  void learn(const Engine& engine, const std::filesystem::path& model_path, Trust trust,
             const std::function<void(std::string_view)>& tell) const;

 private:
  RunFindings findings_of(const Engine& engine, const std::filesystem::path& model_path,
                          const policy::Profile& profile) const;
  std::filesystem::path path_;
  OtherLoad others_;
};

struct Machine {
  policy::Profile profile;
  std::shared_ptr<KeptProfile> kept;  ///< null for a profile that was given
};

/// A shipped profile by name, or one from a file. Errors: kUser (unknown name, with those there
/// are; bad file), kFile.
policy::Profile find_profile(const std::string& name_or_path);
/// Whether this machine has a kept profile, or one was given or asked for.
bool has_profile(const MachineOptions& options);
/// The machine with the device that the engine is to compute on. Errors: kUser for a profile that
/// is of another kind of machine; what measuring throws.
Machine machine_of(const MachineOptions& options, const EngineOptions& engine);

/// The rate at which the largest file of a model reads now, bytes/s: the profile knows the offload
/// folder's disk, and shared disks drift. 0 when there is nothing large to read.
double model_read_rate(const std::filesystem::path& model_path);
/// Scales the first disk's rates so that it reads at `bytes_per_second`.
void set_read_rate(policy::Profile& profile, double bytes_per_second);

}  // namespace sluice::app
