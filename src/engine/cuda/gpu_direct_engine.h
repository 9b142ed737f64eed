#pragma once
// Reads files straight into a GPU's memory with NVIDIA's libcufile (GPUDirect Storage), which is
// loaded at run time: threads that call cuFileRead, so that the bytes pass neither through host
// memory nor a core. What libcufile can't do that way it does by copying itself. Thread safe as
// FileEngine.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/async/queued_engine.h"
#include "src/base/mutex.h"

namespace sluice {

class GpuDirectEngine final : public io::QueuedEngine {
 public:
  /// `library` as dlopen takes it. Errors: kDevice, with what is missing; kResource.
  GpuDirectEngine(int gpu, const std::string& library, const io::FileEngineOptions& asked);
  ~GpuDirectEngine() override;

  /// libcufile as NVIDIA's packages install it.
  static constexpr const char* kLibrary = "libcufile.so.0";
  /// 8 MiB requests, 8 in flight (which options without a number of threads get too).
  static io::FileEngineOptions default_options();
  /// "libcufile.so.0 is there" or "no libcufile.so.0" and what dlopen says.
  static std::string report(const std::string& library);

  /// The memory of an Extent is device memory; offsets and lengths may be any.
  io::FileId open_for_read(const std::string& path) override;
  /// Only reads.
  void write(std::span<const io::Extent> extents, io::Completion done) override;
  int64_t register_memory(std::span<std::byte> memory) override;
  void unregister_memory(std::span<std::byte> memory) override;
  std::string describe() const override;

 private:
  class Library;
  struct KnownFile;

  void run();
  int64_t carry_out(const io::Request& request);

  int gpu_;
  std::shared_ptr<Library> library_;
  Mutex memory_mutex_;
  std::vector<std::span<std::byte>> memory_ SLUICE_GUARDED_BY(memory_mutex_);
  bool has_warned_ SLUICE_GUARDED_BY(memory_mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sluice
