// A whole job over ranks that are threads: every row once in the output, whoever is cut off, held,
// wakes up late or is started again.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "src/base/error.h"
#include "src/jobs/job.h"
#include "src/jobs/shard.h"
#include "src/ranks/row_client.h"
#include "src/ranks/row_server.h"
#include "src/transport/local_network.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::ranks {
namespace {

using namespace std::chrono_literals;

// Nobody is given up by mistake on a busy machine, but where a test waits for just that.
constexpr Patience kLong{60, 600}, kShort{1.5, 600};

// A rank as the program has one, with a computation that answers "it <prompt>" at once.
class TestRank {
 public:
  TestRank(LocalNetwork& network, int rank, int ranks, const std::string& out,
           const Patience& patience = kLong, double silence_seconds = 20)
      : transport_(network.join(rank)),
        courier_(*transport_),
        client_(courier_, silence_seconds),
        out_(out) {
    if (rank == 0) server_ = std::make_unique<RowServer>(courier_, ranks, patience);
    courier_.on_message = [this](Message&& message) {
      if (Reader(message.bytes).kind() < Kind::kWelcome)
        server_->take(std::move(message));
      else
        client_.take(message);
    };
    courier_.on_tick = [this](double now) {
      if (server_) server_->tick(now);
      client_.tick(now);
    };
    courier_.on_error = [this](const std::exception_ptr& error) {
      if (server_) server_->fail(error);
      client_.fail(error);
    };
    courier_.start();
  }

  RowServer& server() { return *server_; }

  // Computes until the job ends; before each row `before` is called with the count of rows so far,
  // and a false ends it like a crash: without a goodbye.
  void start(std::function<bool(int64_t)> before = {}, const std::string& config = "config") {
    thread_ = std::jthread([this, before = std::move(before), config] {
      jobs::ResultsFile own(jobs::rank_path(out_, transport_->rank()), config, "m");
      try {
        const auto workload = client_.join(config, own, {});
        if (workload) sequences = workload->sequences;
        int64_t count = 0;
        while (workload && client_.is_open()) {
          const auto line = client_.next();
          if (!line) {
            client_.wait({});
            continue;
          }
          if (before && !before(count++)) return;
          const auto row = jobs::parse_request(line->text, {}, line->number);
          own.write(
              std::get<jobs::Request>(row),
              {"it " + std::get<jobs::Request>(row).prompt, "length", 1, 1, std::nullopt, {}});
          Status status;
          status.passes = count;
          client_.set_status(status);
        }
        client_.say_goodbye("");
      } catch (const Error& error) {
        why = error.text();
        client_.say_goodbye(why);
      }
      own.on_record = {};
      left_together = client_.wait_to_leave();
    });
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  void stop() {
    courier_.stop();
    courier_.flush(1);
  }
  ~TestRank() { courier_.stop(); }

  std::string why;
  std::atomic<bool> left_together = false;
  int64_t sequences = 0;

 private:
  std::unique_ptr<Transport> transport_;
  Courier courier_;
  RowClient client_;
  std::unique_ptr<RowServer> server_;
  std::string out_;
  std::jthread thread_;
};

class JobOverRanks : public ::testing::Test {
 protected:
  void write_input(int rows) {
    std::string text;
    for (int i = 0; i < rows; ++i)
      text += R"({"custom_id": "r)" + std::to_string(i) + R"(", "prompt": "p)" + std::to_string(i) +
              "\"}\n" + (i % 5 ? "" : "\n");
    jobs::write_all(folder_.file("in"), text);
  }

  RowJob job(jobs::ResultsFile& results) const {
    RowJob out{folder_.file("in"), {}, {}, "config"};
    std::ifstream input(out.input);
    jobs::JobReader reader(input, "in", {}, &results);
    while (const auto line = reader.next()) {
      const auto& request = std::get<jobs::Request>(*line);
      out.rows.push_back({request.line_number, reader.line_offset(), reader.line_bytes(),
                          request.line_number % 7, *jobs::ContentKey::from_hex(request.key)});
      ++out.workload.sequences;
    }
    return out;
  }

  // Expects every row once with its answer.
  void expect_whole(int rows) const {
    std::ifstream lines(out());
    std::set<std::string> seen;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      const std::string id = record["custom_id"];
      EXPECT_TRUE(seen.insert(id).second) << id << " twice";
      EXPECT_EQ(record["response"]["body"]["choices"][0]["text"], "it p" + id.substr(1));
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(rows));
  }

  std::string out() const { return folder_.file("out"); }

  // Runs the job over `ranks`; `before(rank, count)` as TestRank::start's.
  JobAccount run(int ranks, const std::function<bool(int, int64_t)>& before = {},
                 const Patience& patience = kLong, std::chrono::milliseconds late = 0ms) {
    LocalNetwork network(ranks);
    network_ = &network;
    jobs::ResultsFile results(out(), "config", "m");
    std::vector<std::unique_ptr<TestRank>> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(std::make_unique<TestRank>(network, rank, ranks, out(), patience));
    all[0]->server().begin(job(results), results);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 1) std::this_thread::sleep_for(late);
      all[static_cast<size_t>(rank)]->start(
          [&, rank](int64_t count) { return !before || before(rank, count); });
    }
    JobAccount account = all[0]->server().wait({});
    for (int rank = 0; rank < ranks; ++rank) network.hold(rank, false);
    for (auto& rank : all) rank->join();
    together_.clear();
    for (auto& rank : all) together_.push_back(rank->left_together);
    for (auto& rank : all) rank->stop();
    all[0]->server().rethrow();
    return account;
  }

  TemporaryFolder folder_;
  LocalNetwork* network_ = nullptr;
  std::vector<bool> together_;
};

TEST_F(JobOverRanks, GivesEveryRowOnceForAnyNumberOfRanks) {
  for (int rows : {0, 1, 2, 7, 100}) {
    write_input(rows);
    for (int ranks : {1, 2, 5}) {
      std::filesystem::remove(out());
      for (int rank = 0; rank < ranks; ++rank)
        std::filesystem::remove(jobs::rank_path(out(), rank));
      const JobAccount account = run(ranks);
      EXPECT_TRUE(account.is_complete);
      EXPECT_TRUE(account.all_are_here);
      EXPECT_EQ(together_, std::vector<bool>(static_cast<size_t>(ranks), true));
      EXPECT_EQ(account.done, rows);
      EXPECT_EQ(account.ignored, 0);
      expect_whole(rows);
    }
  }
}

TEST_F(JobOverRanks, ARankThatDiesLosesItsRowsToTheOthers) {
  write_input(60);
  const JobAccount account = run(
      3,
      [&](int rank, int64_t count) {
        if (rank != 2 || count < 2) return true;
        network_->cut_off(2);
        return false;
      },
      kShort);
  EXPECT_TRUE(account.is_complete);
  EXPECT_FALSE(account.all_are_here);
  EXPECT_EQ(account.ranks[2].state, RankState::kLost);
  EXPECT_EQ(account.ranks[2].times_lost, 1);
  EXPECT_GE(account.dealt_again, 1);
  EXPECT_FALSE(together_[0]);
  expect_whole(60);
}

TEST_F(JobOverRanks, WhatARankThatWasLostFinishesLateIsNotWrittenTwice) {
  write_input(60);
  std::atomic<bool> is_woken = false;
  const JobAccount account = run(
      2,
      [&](int rank, int64_t count) {
        if (rank == 1 && count == 1) {
          network_->hold(1, true);
          std::this_thread::sleep_for(3000ms);
          is_woken = true;
          network_->hold(1, false);
        }
        // The job is still there when it wakes up.
        while (rank == 0 && count == 20 && !is_woken) std::this_thread::sleep_for(10ms);
        if (rank == 0 && count > 20) std::this_thread::sleep_for(20ms);
        return true;
      },
      kShort);
  EXPECT_TRUE(account.is_complete);
  EXPECT_TRUE(account.all_are_here) << "it came back";
  EXPECT_EQ(account.ranks[1].times_lost, 1);
  EXPECT_GE(account.dealt_again, 1);
  EXPECT_GT(account.ranks[1].rows, 1);
  expect_whole(60);
}

// What ranks wrote and rank 0 never got: they bring it when they start again.
TEST_F(JobOverRanks, RecordsThatOnlyARankHoldsAreBrought) {
  write_input(30);
  run(3);
  const std::string whole = jobs::read_all(out());
  std::string half;
  std::istringstream lines(whole);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    if (count % 3 == 0) half += line + "\n";
  jobs::write_all(out(), half + R"({"id":"batch_req_torn)");
  std::atomic<int> computed = 0;
  // Rank 0 would be dealt what the others bring later.
  const auto before = [&](int, int64_t) {
    ++computed;
    return true;
  };
  const JobAccount account = run(3, before, kLong, 300ms);
  EXPECT_TRUE(account.is_complete);
  EXPECT_EQ(account.done, 20);
  EXPECT_EQ(computed, 0) << "all rows were in the ranks' files";
  expect_whole(30);
}

TEST_F(JobOverRanks, AnotherModelIsRefusedAndTheOthersGoOn) {
  write_input(20);
  LocalNetwork network(2);
  jobs::ResultsFile results(out(), "config", "m");
  TestRank first(network, 0, 2, out()), second(network, 1, 2, out());
  first.start();
  second.start({}, "another config");
  first.server().begin(job(results), results);
  const JobAccount account = first.server().wait({});
  first.join();
  second.join();
  EXPECT_TRUE(account.is_complete);
  EXPECT_NE(account.ranks[1].why.find("refuses"), std::string::npos) << account.ranks[1].why;
  EXPECT_NE(second.why.find("another model"), std::string::npos);
  expect_whole(20);
  first.stop();
  second.stop();
}

TEST_F(JobOverRanks, EndsWithAnAccountWhenNobodyIsLeft) {
  write_input(20);
  LocalNetwork network(2);
  jobs::ResultsFile results(out(), "config", "m");
  TestRank first(network, 0, 2, out()), second(network, 1, 2, out());
  first.start({}, "wrong");
  second.start({}, "wrong too");
  first.server().begin(job(results), results);
  const JobAccount account = first.server().wait({});
  EXPECT_FALSE(account.is_complete);
  EXPECT_EQ(account.done, 0);
  try {
    first.server().rethrow();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("no rank is left, and 20 rows are"), std::string::npos);
    EXPECT_NE(error.text().find("rank 1: "), std::string::npos) << error.text();
  }
  first.join();
  second.join();
  first.stop();
  second.stop();
}

TEST_F(JobOverRanks, ARankWhoseRankZeroIsSilentEndsByItself) {
  write_input(5);
  LocalNetwork network(2);
  network.cut_off(0);
  TestRank second(network, 1, 2, out(), kLong, 1.5);
  second.start();
  second.join();
  EXPECT_NE(second.why.find("rank 0 has said nothing"), std::string::npos) << second.why;
  EXPECT_FALSE(second.left_together);
}

TEST_F(JobOverRanks, AStopEndsItAndTheNextRunGoesOn) {
  write_input(40);
  {
    LocalNetwork network(2);
    network_ = &network;
    jobs::ResultsFile results(out(), "config", "m");
    TestRank first(network, 0, 2, out()), second(network, 1, 2, out());
    std::stop_source stop;
    const auto before = [&stop](int64_t count) {
      if (count == 5) stop.request_stop();
      std::this_thread::sleep_for(20ms);
      return true;
    };
    first.start(before);
    second.start(before);
    first.server().begin(job(results), results);
    const JobAccount account = first.server().wait(stop.get_token());
    EXPECT_FALSE(account.is_complete);
    EXPECT_GT(account.done, 0);
    EXPECT_LT(account.done, 40);
    try {
      first.server().rethrow();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    }
    first.join();
    second.join();
    first.stop();
    second.stop();
  }
  EXPECT_TRUE(run(3).is_complete);
  expect_whole(40);
}

}  // namespace
}  // namespace sluice::ranks
