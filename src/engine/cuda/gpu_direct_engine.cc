#include "src/engine/cuda/gpu_direct_engine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/cuda/driver.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/system_error.h"

namespace sluice {

// The calls of libcufile's C interface that we need, as its documentation gives them.
class GpuDirectEngine::Library {
 public:
  struct Status {
    int error = 0;  ///< 0: good; from 5001 on libcufile's own
    int cuda_error = 0;
  };

  explicit Library(const std::string& name) : library_(::dlopen(name.c_str(), RTLD_NOW)) {
    if (!library_) refuse(::dlerror());
    find(open_, "cuFileDriverOpen");
    find(close_, "cuFileDriverClose");
    find(register_file_, "cuFileHandleRegister");
    find(deregister_file_, "cuFileHandleDeregister");
    find(register_memory_, "cuFileBufRegister");
    find(deregister_memory_, "cuFileBufDeregister");
    find(read_, "cuFileRead");
    if (const Status status = open_(); status.error != 0)
      refuse(fmt::format("{} has no use of its driver ({})", name, text(status)));
  }
  ~Library() { close_(); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* register_file(int fd, const std::string& path) const {
    Descriptor descriptor{kDescriptorOfLinux, {.fd = fd}, nullptr};
    void* handle = nullptr;
    if (const Status status = register_file_(&handle, &descriptor); status.error != 0)
      refuse(fmt::format("it can't read {} ({})", path, text(status)));
    return handle;
  }
  void deregister_file(void* handle) const { deregister_file_(handle); }
  Status register_memory(std::span<std::byte> memory) const {
    return register_memory_(memory.data(), memory.size(), 0);
  }
  void deregister_memory(std::span<std::byte> memory) const { deregister_memory_(memory.data()); }
  /// Bytes read; -1 with errno, or minus one of libcufile's own numbers.
  ssize_t read(void* handle, std::byte* base, size_t bytes, int64_t offset, int64_t at) const {
    return read_(handle, base, bytes, offset, at);
  }

  static std::string text(const Status& status) {
    return status.cuda_error != 0
               ? fmt::format("cuFile error {}, CUDA error {}", status.error, status.cuda_error)
               : fmt::format("cuFile error {}", status.error);
  }

 private:
  static constexpr int kDescriptorOfLinux = 1;
  struct Descriptor {
    int type;
    union {
      int fd;
      void* handle;
    } file;
    const void* operations;
  };
  struct Close {
    void operator()(void* library) const noexcept { ::dlclose(library); }
  };

  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorKind::kDevice, "`gpu_direct`: " + what,
                "install NVIDIA's GPUDirect Storage (libcufile, nvidia-fs), or leave it out: "
                "weights then pass through host memory");
  }
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_.get(), name));
    if (!function) refuse(fmt::format("libcufile has no {}", name));
  }

  std::unique_ptr<void, Close> library_;
  Status (*open_)() = nullptr;
  Status (*close_)() = nullptr;
  Status (*register_file_)(void**, Descriptor*) = nullptr;
  void (*deregister_file_)(void*) = nullptr;
  Status (*register_memory_)(const void*, size_t, int) = nullptr;
  Status (*deregister_memory_)(const void*) = nullptr;
  ssize_t (*read_)(void*, void*, size_t, off_t, off_t) = nullptr;
};

// A file as libcufile knows it.
struct GpuDirectEngine::KnownFile {
  KnownFile(std::shared_ptr<Library> of, int fd, const std::string& path)
      : library(std::move(of)), handle(library->register_file(fd, path)) {}
  ~KnownFile() { library->deregister_file(handle); }
  KnownFile(const KnownFile&) = delete;
  KnownFile& operator=(const KnownFile&) = delete;

  std::shared_ptr<Library> library;
  void* handle;
};

namespace {
constexpr int kThreads = 8;

io::FileEngineOptions with_threads(io::FileEngineOptions options) {
  if (options.threads == 0) options.threads = kThreads;
  return options;
}
}  // namespace

io::FileEngineOptions GpuDirectEngine::default_options() {
  io::FileEngineOptions options;
  options.request_bytes = 8 * kMiB;
  return with_threads(options);
}

std::string GpuDirectEngine::report(const std::string& library) {
  if (void* found = ::dlopen(library.c_str(), RTLD_LAZY)) {
    ::dlclose(found);
    return library + " is there (`gpu_direct`)";
  }
  return fmt::format("no {} ({})", library, ::dlerror());
}

GpuDirectEngine::GpuDirectEngine(int gpu, const std::string& library,
                                 const io::FileEngineOptions& asked)
    : QueuedEngine(with_threads(asked), with_threads(asked).threads), gpu_(gpu) {
  const cuda::DeviceScope scope(gpu);
  library_ = std::make_shared<Library>(library);
  try {
    while (static_cast<int>(threads_.size()) < options().threads)
      threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    begin_stop();
    threads_.clear();
    throw Error(
        ErrorKind::kResource,
        fmt::format("starting {} I/O threads: {}", options().threads, error.code().message()),
        "raise the limit of processes (ulimit -u)");
  }
}

GpuDirectEngine::~GpuDirectEngine() {
  begin_stop();
  threads_.clear();
  for (const std::span<std::byte> memory : memory_) library_->deregister_memory(memory);
}

io::FileId GpuDirectEngine::open_for_read(const std::string& path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  io::OwnedFd fd(::open(path.c_str(), kFlags | O_DIRECT));
  if (!fd) fd.reset(::open(path.c_str(), kFlags));
  if (!fd) throw system_error(errno, "opening " + path);
  auto known = std::make_shared<KnownFile>(library_, fd.get(), path);
  // Not direct to the queue: libcufile reads any range.
  const io::FileId file = adopt(std::move(fd), path, false);
  set_known_as(file, std::move(known));
  return file;
}

void GpuDirectEngine::write(std::span<const io::Extent>, io::Completion) {
  SLUICE_ASSERT(false, "weights are only read");
}

int64_t GpuDirectEngine::register_memory(std::span<std::byte> memory) {
  const cuda::DeviceScope scope(gpu_);
  const Library::Status status = library_->register_memory(memory);
  if (status.error != 0) {  // a small window to the GPU's memory, say: it then copies
    log(fmt::format("GPUDirect: {} of GPU memory can't be mapped ({})",
                    format_bytes(static_cast<int64_t>(memory.size())), Library::text(status)));
    return 0;
  }
  const MutexLock lock(memory_mutex_);
  memory_.push_back(memory);
  return static_cast<int64_t>(memory.size());
}

void GpuDirectEngine::unregister_memory(std::span<std::byte> memory) {
  const MutexLock lock(memory_mutex_);
  for (auto i = memory_.begin(); i != memory_.end(); ++i) {
    if (i->data() != memory.data() || i->size() != memory.size()) continue;
    library_->deregister_memory(memory);
    memory_.erase(i);
    return;
  }
}

std::string GpuDirectEngine::describe() const {
  return fmt::format("GPUDirect, {} requests, {} threads", format_bytes(options().request_bytes),
                     options().threads);
}

// As pread: bytes moved or -errno.
int64_t GpuDirectEngine::carry_out(const io::Request& request) {
  std::byte* base = request.memory + request.progress;
  const auto bytes = static_cast<size_t>(request.bytes - request.progress);
  void* const handle = static_cast<const KnownFile*>(request.file->known_as.get())->handle;
  int64_t at = 0;
  {
    const MutexLock lock(memory_mutex_);
    for (const std::span<std::byte> memory : memory_)
      if (base >= memory.data() && base < memory.data() + memory.size()) {
        at = base - memory.data();
        base = memory.data();
        break;
      }
  }
  const ssize_t moved = library_->read(handle, base, bytes, request.offset + request.progress, at);
  if (moved >= 0) return moved;
  if (moved == -1) return -errno;
  const MutexLock lock(memory_mutex_);
  if (!has_warned_)
    log(fmt::format("GPUDirect: reading {}: {}", request.file->name,
                    Library::text({static_cast<int>(-moved), 0})));
  has_warned_ = true;
  return -EIO;
}

void GpuDirectEngine::run() {
  io::become_engine_thread("sluice-cufile");
  cuda::use_device(gpu_);
  while (!is_drained()) {
    if (std::optional<io::Request> request = wait_next()) {
      while (settle(*request, carry_out(*request))) {
      }
    }
    deliver_finished();
  }
}

}  // namespace sluice
