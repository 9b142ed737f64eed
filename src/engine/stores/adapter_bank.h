#pragma once
// The adapters that an engine may compute with, by name: all in memory of the tier that computes, a
// GPU's too, in room that the plan has set apart. Some may come and go while sequences run: one
// that is unloaded takes no new requests, and its memory is free when the last sequence that has it
// has ended. Thread safe.
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/arena.h"
#include "src/base/mutex.h"
#include "src/device/device.h"
#include "src/engine/passes/placed_adapter.h"
#include "src/engine/stores/adapter_places.h"

namespace sluice {

/// Room for adapters, as options have it. 0 bytes: requests can't choose any.
struct AdapterRoom {
  int64_t bytes = 0;
  int64_t rank = 0;  ///< the largest of any
};
/// Room for those adapters and `more_bytes` of ranks up to `most_rank` loaded later. Errors as
/// adapter_places().
AdapterRoom adapter_room(const BoundModel& model, std::span<const LoraAdapter> adapters,
                         int64_t more_bytes = 0, int64_t most_rank = 0);

class AdapterBank {
 public:
  /// Takes the room from `memory`, the `device`'s where there is one; both outlive the bank and
  /// every adapter. `model` too. Errors: kResource.
  AdapterBank(const BoundModel& model, const AdapterRoom& room, Arena& memory, Device* device);
  ~AdapterBank();
  AdapterBank(const AdapterBank&) = delete;
  AdapterBank& operator=(const AdapterBank&) = delete;

  /// Places an adapter under a name that none has. Reads rows of the model where lengths are needed
  /// (DoRA) or a copy of a table has to be compared. Errors: kUser (the name, what adapter_places()
  /// refuses, a rank above the room's, a copy that differs), kResource (no room: how much there
  /// is), kFile.
  AdapterPtr load(const std::string& name, const LoraAdapter& adapter);
  /// False: none has that name.
  bool unload(std::string_view name);
  /// Null: none has that name.
  AdapterPtr find(std::string_view name) const;
  /// In the order of their names.
  std::vector<AdapterPtr> list() const;

  const AdapterRoom& room() const noexcept { return room_; }
  int64_t free_bytes() const;

 private:
  class Memory;
  void place(std::span<const AdapterPlace> places, PlacedAdapter& adapter, std::byte* to) const;

  const BoundModel& model_;
  AdapterRoom room_;
  Device* device_;                  // null: the processor reads the memory
  std::shared_ptr<Memory> memory_;  // what is placed keeps it
  mutable Mutex mutex_;
  int64_t next_id_ SLUICE_GUARDED_BY(mutex_) = 1;
  std::map<std::string, AdapterPtr, std::less<>> adapters_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
