#pragma once
// The file engine over io_uring: one thread owns the ring, issues requests in batches and sleeps in
// the kernel between completions, so that the cores stay with the computation. Works from
// Linux 5.10 on; newer kernels save more (registered memory from 5.13, quieter completions
// from 5.19 and 6.1).
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "io/async/queued_engine.h"

namespace sluice::io {

class UringEngine : public QueuedEngine {
 public:
  /// Errors: kUser for sizes out of range; kDevice when the kernel refuses io_uring, with its
  /// reason.
  explicit UringEngine(const FileEngineOptions& options);
  ~UringEngine() override;

  int64_t register_memory(std::span<std::byte> memory) override;
  void unregister_memory(std::span<std::byte> memory) override;
  std::string describe() const override;

 private:
  class Ring;  // all that the ring's thread alone touches
  struct Mailbox;

  void wake() override;
  void run();
  void serve_mailbox();
  int64_t post_and_wait(std::span<std::byte> memory, bool is_registration);

  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<Ring> ring_;
  std::atomic<bool> may_sleep_{
      false};  // set by the ring's thread before it looks for work a last time
  std::atomic<int64_t> registered_bytes_{0};
  std::jthread thread_;
};

}  // namespace sluice::io
