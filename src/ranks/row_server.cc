#include "src/ranks/row_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/error.h"
#include "src/jobs/record.h"

namespace sluice::ranks {

namespace {

// Ranks may hold records of rows that nobody need compute again: they are waited for this long.
constexpr double kHelloSeconds = 5;
constexpr double kGoodbyeSeconds = 30;  // an engine ends its task, tables are written

// A part's share of the whole, for the rank's plan.
policy::Workload share_of(const policy::Workload& whole, int64_t ranks) {
  policy::Workload out = whole;
  const auto part = [ranks](int64_t value) { return (value + ranks - 1) / ranks; };
  out.sequences = std::max(part(whole.sequences), whole.beams);
  out.total_tokens = std::max(part(whole.total_tokens), whole.max_total_tokens);
  out.prompt_tokens =
      std::min(std::max(part(whole.prompt_tokens), whole.max_prompt_tokens), out.total_tokens);
  return out;
}

}  // namespace

RowServer::RowServer(Courier& courier, int ranks, const Patience& patience)
    : courier_(courier), patience_(patience), peers_(static_cast<size_t>(ranks)) {}

void RowServer::begin(RowJob job, jobs::ResultsFile& results) {
  const MutexLock lock(mutex_);
  coming_.emplace(std::move(job), &results);
}

void RowServer::start(RowJob job, jobs::ResultsFile* results) {
  std::vector<Row> rows = std::move(job.rows);
  jobs::OwnedFile input(job.input, O_RDONLY);
  running_.reset(new Running{std::move(job), std::move(input), results,
                             Dealer(std::move(rows), static_cast<int>(peers_.size()), patience_)});
  began_ = now_;
  for (Peer& peer : peers_) peer.heard = now_;
  for (Message& message : std::exchange(early_, {})) handle(std::move(message));
}

void RowServer::take(Message&& message) {
  Peer& peer = peers_[static_cast<size_t>(message.from)];
  peer.heard = now_;
  if (running_)
    handle(std::move(message));
  else
    early_.push_back(std::move(message));
}

void RowServer::handle(Message&& message) {
  const int rank = message.from;
  Peer& peer = peers_[static_cast<size_t>(rank)];
  Dealer& dealer = running_->dealer;
  Reader reader(message.bytes);
  dealer.hear(rank, peer.status.passes, now_);
  switch (reader.kind()) {
    case Kind::kHello: welcome(rank, reader); break;
    case Kind::kRecord: keep(rank, reader.text()); break;
    case Kind::kAsk:
      peer.want = reader.number();
      peer.is_idle = reader.number() != 0;
      deal_to(rank);
      break;
    case Kind::kStatus:
      peer.status = Status::unpack(reader);
      dealer.hear(rank, peer.status.passes, now_);
      break;
    case Kind::kBye:
      peer.why = reader.text();
      peer.has_left = true;
      peer.want = 0;
      dealer.leave(rank);
      deal();
      break;
    default: break;  // kAlive
  }
  if (dealer.is_done() && ended_ < 0) end(true);
}

void RowServer::welcome(int rank, Reader& reader) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const std::string config = reader.text();
  peer.host = reader.text();
  peer.pid = reader.number();
  const std::string keys = reader.text();
  if (config != running_->job.config) {
    peer.why = "it has another model, template or program than rank 0";
    courier_.send(rank, Writer(Kind::kWelcome).text(peer.why).take());
    return;
  }
  running_->dealer.join(rank, now_);
  std::string wanted;
  constexpr size_t kKeyBytes = sizeof(uint64_t) * 2;
  for (size_t at = 0; at + kKeyBytes <= keys.size(); at += kKeyBytes) {
    jobs::ContentKey key;
    std::memcpy(&key.high, keys.data() + at, sizeof key.high);
    std::memcpy(&key.low, keys.data() + at + sizeof key.high, sizeof key.low);
    if (running_->dealer.hold(rank, key)) wanted += keys.substr(at, kKeyBytes);
  }
  const policy::Workload part =
      share_of(running_->job.workload, static_cast<int64_t>(peers_.size()));
  courier_.send(rank, Writer(Kind::kWelcome)
                          .text("")
                          .number(part.sequences)
                          .number(part.max_prompt_tokens)
                          .number(part.max_total_tokens)
                          .number(part.total_tokens)
                          .number(part.prompt_tokens)
                          .number(part.beams)
                          .text(wanted)
                          .take());
  if (ended_ >= 0) courier_.send(rank, Writer(Kind::kEnd).number(is_complete_).take());
  deal();
}

bool RowServer::may_deal() const {
  return now_ - began_ > kHelloSeconds ||
         std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return !peer.host.empty() || peer.has_left; });
}

void RowServer::keep(int rank, std::string_view record) {
  const auto read = jobs::read_record(record);
  if (!read) throw Error(ErrorKind::kInternal, fmt::format("rank {} sent no record", rank));
  if (!running_->dealer.finish(rank, read->key)) {
    ++ignored_;
    return;
  }
  running_->results->take(record);
  last_kept_ = std::chrono::steady_clock::now();
}

void RowServer::deal_to(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.want <= 0 || ended_ >= 0 || !may_deal()) return;
  const std::vector<Row> rows = running_->dealer.deal(rank, peer.want, peer.is_idle, now_);
  if (rows.empty()) return;  // the question stays
  if (!first_dealt_) first_dealt_ = std::chrono::steady_clock::now();
  peer.want = 0;
  Writer writer(Kind::kRows);
  writer.number(static_cast<int64_t>(rows.size()));
  std::string line;
  for (const Row& row : rows) {
    line.resize(static_cast<size_t>(row.bytes));
    if (running_->input.read(line.data(), row.bytes, row.offset) != row.bytes)
      throw Error(ErrorKind::kFile,
                  fmt::format("{} has become shorter while it was read", running_->job.input),
                  "leave the input as it is while the job runs");
    writer.number(row.line).text(line);
  }
  courier_.send(rank, writer.take());
}

void RowServer::deal() {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) deal_to(rank);
}

void RowServer::tick(double now) {
  now_ = now;
  std::optional<std::pair<RowJob, jobs::ResultsFile*>> coming;
  {
    const MutexLock lock(mutex_);
    coming.swap(coming_);
  }
  if (coming) start(std::move(coming->first), coming->second);
  if (now - told_ >= kTellSeconds) {
    told_ = now;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
      courier_.send(rank, Writer(Kind::kAlive).take());
    if (running_ && ended_ < 0 && on_progress) on_progress(account());
  }
  if (running_) watch(now);
}

void RowServer::watch(double now) {
  Dealer& dealer = running_->dealer;
  if (ended_ >= 0) {
    part(now);
    return;
  }
  for (const int rank : dealer.give_up(now)) ++peers_[static_cast<size_t>(rank)].times_lost;
  deal();
  if (dealer.is_done())
    end(true);
  else if (is_stopped_ || !is_anybody_left(now))
    end(false);
}

// Somebody who works, or who may yet say hello.
bool RowServer::is_anybody_left(double now) const {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const RankState state = running_->dealer.state(rank);
    if (state == RankState::kWorking) return true;
    if (state == RankState::kAbsent && peer.why.empty() &&
        now - peer.heard <= patience_.silence_seconds)
      return true;
  }
  return false;
}

void RowServer::end(bool is_complete) {
  ended_ = now_;
  is_complete_ = is_complete;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    courier_.send(rank, Writer(Kind::kEnd).number(is_complete).take());
}

// Tells all how to leave once all have said goodbye, or have been waited for.
void RowServer::part(double now) {
  {
    const MutexLock lock(mutex_);
    if (ended_account_) return;
  }
  bool all_are_here = true, is_waiting = false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.has_left) continue;
    all_are_here = false;
    is_waiting = is_waiting || running_->dealer.state(rank) != RankState::kLost;
  }
  const double waited = now - ended_;
  if (is_waiting && waited < std::min(kGoodbyeSeconds, patience_.silence_seconds)) return;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    courier_.send(rank, Writer(Kind::kLeave).number(all_are_here).take());
  if (!all_are_here) end_stopped_here();
  JobAccount account = this->account();
  account.is_complete = is_complete_;
  account.all_are_here = all_are_here;
  const MutexLock lock(mutex_);
  ended_account_ = std::move(account);
  changed_.notify_all();
}

// A stopped process takes no signal but this one, and mpirun would wait for it.
void RowServer::end_stopped_here() const {
  const std::string host = host_name();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.has_left || peer.host != host || peer.pid <= 0) continue;
    std::ifstream variables(fmt::format("/proc/{}/environ", peer.pid), std::ios::binary);
    std::ostringstream text;
    text << variables.rdbuf();
    // The number may be another process's by now.
    const std::string mark = fmt::format("RANK={}", rank);
    const std::string all = '\0' + text.str();
    const auto has = [&](std::string name) {
      return all.find('\0' + name + mark + '\0') != all.npos;
    };
    if (has("PMIX_") || has("OMPI_COMM_WORLD_")) ::kill(static_cast<pid_t>(peer.pid), SIGKILL);
  }
}

JobAccount RowServer::account() const {
  JobAccount out;
  const Dealer& dealer = running_->dealer;
  out.rows = dealer.rows();
  out.done = out.rows - dealer.left();
  out.dealt_again = dealer.dealt_again();
  out.ignored = ignored_;
  if (first_dealt_ && last_kept_)
    out.seconds = std::chrono::duration<double>(*last_kept_ - *first_dealt_).count();
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    out.ranks.push_back({peer.host, dealer.state(rank), dealer.finished(rank), dealer.held(rank),
                         peer.status, peer.why, peer.times_lost});
  }
  return out;
}

void RowServer::fail(const std::exception_ptr& error) {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    for (const Kind kind : {Kind::kEnd, Kind::kLeave})
      courier_.send(rank, Writer(kind).number(0).take());
  JobAccount account;
  if (running_) account = this->account();
  const MutexLock lock(mutex_);
  error_ = error;
  ended_account_ = std::move(account);
  changed_.notify_all();
}

JobAccount RowServer::wait(const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] { is_stopped_ = true; });
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() SLUICE_REQUIRES(mutex_) { return ended_account_.has_value(); });
  return *ended_account_;
}

void RowServer::rethrow() const {
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  if (ended_account_->is_complete) return;
  const int64_t left = ended_account_->rows - ended_account_->done;
  if (is_stopped_)
    throw Error(ErrorKind::kCancelled, fmt::format("stopped; {} rows are left", left),
                "start the same command again to go on");
  std::string whys;
  for (size_t rank = 0; rank < ended_account_->ranks.size(); ++rank)
    if (const std::string& why = ended_account_->ranks[rank].why; !why.empty())
      whys += fmt::format("\n  rank {}: {}", rank, why);
  throw Error(ErrorKind::kResource, fmt::format("no rank is left, and {} rows are{}", left, whys),
              "mend what stopped them and start the same command again: it goes on");
}

}  // namespace sluice::ranks
