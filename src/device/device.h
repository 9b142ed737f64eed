#pragma once
// A device below which host memory and disk are the lower tiers: memory with a limit of its own and
// a link in each direction. The engine's stores ask for copies and never look at device memory
// themselves. Thread safe: one thread a lane, one lane a direction.
#include <cstddef>
#include <cstdint>
#include <functional>

#include "src/base/arena.h"
#include "src/device/notices.h"

namespace sluice {

enum class Direction : uint8_t { kUp, kDown };  ///< host to device, device to host

class Device {
 public:
  /// One copy; the pointers and what they point at must live until the transfer has ended.
  using Copy = std::function<void(std::byte* to, const std::byte* from, int64_t bytes)>;

  virtual ~Device() = default;
  virtual Arena& memory() noexcept = 0;
  /// Makes the copies that `copies` asks for, `bytes` in all, and comes back when the last has
  /// ended. Errors: kDevice.
  virtual void transfer(Direction direction, int64_t bytes,
                        const std::function<void(const Copy&)>& copies) = 0;
  /// Into memory that nobody works on, from any thread, while lanes are busy too. `from` may be
  /// used again at once.
  virtual void load(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  /// False when device memory has addresses that the host can't use.
  virtual bool is_in_host_memory() const noexcept = 0;
  /// True when it computes while the host's cores do something else.
  virtual bool has_own_cores() const noexcept = 0;
  /// Where host memory that copies go from and to should come from; null: anywhere.
  virtual MemorySource* host_memory_source() noexcept { return nullptr; }
  /// Of that source's memory, what is page-locked for copies and what the system would not lock.
  virtual int64_t pinned_bytes() const noexcept { return 0; }
  virtual int64_t pageable_bytes() const noexcept { return 0; }
  /// What it does otherwise than it should; null: nothing ever.
  virtual Notices* notices() noexcept { return nullptr; }
};

}  // namespace sluice
