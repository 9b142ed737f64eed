// Open MPI as a Transport. All calls are immediate ones, and messages go in pieces below every
// transport's eager limit: a rendezvous would wait for, or read from, a process that may be gone.
#include <fmt/format.h>
#define OMPI_SKIP_MPICXX  // the C interface alone
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "src/base/error.h"
#include "src/transport/transport.h"

namespace sluice {

namespace {

// Shared memory sends 4096 bytes with their header at once, TCP 64 KiB (ompi_info: eager_limit).
constexpr size_t kPieceBytes = 3584;
constexpr size_t kMostInFlight = 64;  // pieces to a rank: what it does not take waits here
constexpr int kTag = 1;

void check(int result, const char* doing) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw Error(ErrorKind::kDevice, fmt::format("MPI: {}: {}", doing, text.data()),
              "the finished rows are safe; start the job again");
}

struct Piece {
  MPI_Request request{};
  std::string bytes;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting");
    if (provided < MPI_THREAD_SERIALIZED)
      throw Error(ErrorKind::kDevice, "this MPI serves only the program's first thread",
                  "use Open MPI as the distribution builds it");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    ends_.resize(static_cast<size_t>(size_));
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void send(int to, std::string bytes) override {
    if (to == rank_) {
      to_self_.push_back(std::move(bytes));
      return;
    }
    End& end = ends_[static_cast<size_t>(to)];
    const uint64_t size = bytes.size();
    std::string head(sizeof size, '\0');
    std::memcpy(head.data(), &size, sizeof size);
    const size_t first = std::min(bytes.size(), kPieceBytes - head.size());
    end.waiting.push_back(head + bytes.substr(0, first));
    for (size_t at = first; at < bytes.size(); at += kPieceBytes)
      end.waiting.push_back(bytes.substr(at, kPieceBytes));
    push(to);
  }

  std::optional<Message> receive() override {
    for (int to = 0; to < size_; ++to) push(to);
    if (!to_self_.empty()) {
      Message out{rank_, std::move(to_self_.front())};
      to_self_.pop_front();
      return out;
    }
    for (;;) {
      int is_there = 0;
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &is_there, &status), "looking");
      if (!is_there) return std::nullopt;
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      std::string piece(static_cast<size_t>(count), '\0');
      check(MPI_Recv(piece.data(), count, MPI_BYTE, status.MPI_SOURCE, kTag, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE),
            "receiving");
      if (auto whole = join(status.MPI_SOURCE, piece)) return whole;
    }
  }

  bool has_left(int to) override {
    push(to);
    const End& end = ends_[static_cast<size_t>(to)];
    return end.waiting.empty() && end.in_flight.empty();
  }

  void leave(bool all_are_here, int exit_code) override {
    if (all_are_here) {
      MPI_Finalize();
      return;
    }
    // A finalise waits for every rank. Rank 0 ends all; if it can't, the others go by themselves.
    if (rank_ == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    std::_Exit(exit_code);
  }

 private:
  struct End {
    std::deque<Piece> in_flight;      // each at its address until it has left
    std::deque<std::string> waiting;  // pieces
    std::string arriving;
    uint64_t expected = 0;
    bool is_in_message = false;
    bool is_broken = false;  // a send failed: what is for it is lost
  };

  void push(int to) {
    End& end = ends_[static_cast<size_t>(to)];
    if (end.is_broken) end.waiting.clear();
    while (!end.in_flight.empty() && !end.is_broken) {
      int has_left = 0;
      const int result = MPI_Test(&end.in_flight.front().request, &has_left, MPI_STATUS_IGNORE);
      end.is_broken = result != MPI_SUCCESS;
      if (end.is_broken || !has_left) break;
      end.in_flight.pop_front();
    }
    while (!end.waiting.empty() && end.in_flight.size() < kMostInFlight) {
      Piece& piece = end.in_flight.emplace_back();
      piece.bytes = std::move(end.waiting.front());
      end.waiting.pop_front();
      const int result = MPI_Isend(piece.bytes.data(), static_cast<int>(piece.bytes.size()),
                                   MPI_BYTE, to, kTag, MPI_COMM_WORLD, &piece.request);
      if (result != MPI_SUCCESS) end.is_broken = true;
      if (end.is_broken) return;
    }
  }

  std::optional<Message> join(int from, const std::string& piece) {
    End& end = ends_[static_cast<size_t>(from)];
    size_t at = 0;
    if (!end.is_in_message) {
      SLUICE_ASSERT(piece.size() >= sizeof end.expected, "a first piece begins with the size");
      std::memcpy(&end.expected, piece.data(), sizeof end.expected);
      at = sizeof end.expected;
      end.arriving.clear();
      end.is_in_message = true;
    }
    end.arriving.append(piece, at);
    if (end.arriving.size() < end.expected) return std::nullopt;
    end.is_in_message = false;
    return Message{from, std::move(end.arriving)};
  }

  int rank_ = 0, size_ = 1;
  std::vector<End> ends_;
  std::deque<std::string> to_self_;
};

}  // namespace

bool has_mpi() noexcept { return true; }

std::unique_ptr<Transport> open_mpi() { return std::make_unique<MpiTransport>(); }

}  // namespace sluice
