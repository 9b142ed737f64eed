#include "policy/pass_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace sluice::policy {

namespace {
// Tokens before each chunk of `chunk` tokens of a run, as far as its layers see them.
double history_of(int64_t first, int64_t count, int64_t chunk, int64_t window) {
  const int64_t chunks = (count + chunk - 1) / chunk;
  const int64_t growing =
      window > 0 ? std::clamp<int64_t>((window - first + chunk - 1) / chunk, 0, chunks) : chunks;
  const auto n = static_cast<double>(growing);
  return n * static_cast<double>(first) + n * (n - 1) / 2 * static_cast<double>(chunk) +
         static_cast<double>(chunks - growing) * static_cast<double>(window);
}

double share_of(double part, double whole) { return whole > 0 ? part / whole : 1; }

// Passes that one of them stands for.
struct Group {
  std::span<const size_t> rows;
  double each = 1;  // passes that a row of the tallies stands for itself
};

class Sampler {
 public:
  Sampler(const PassTallies& tallies, std::span<const KvPlan> layers)
      : tallies_(tallies), layers_(layers) {}

  PassSample sample_of(const Group& group) const {
    const auto sum = [&](const auto& of) {
      double total = 0;
      for (const size_t row : group.rows) total += of(row);
      return total;
    };
    const auto tokens = [&](size_t row) { return tallies_.tokens(row); };
    const size_t row = typical_row(group);
    const double alike = sum(tokens) / tokens(row);
    PassSample out;
    out.pass = tallies_.pass(row);
    out.passes = group.each * alike;
    out.prompts = sum([&](size_t one) { return tallies_.prompts(one); }) / alike;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto pairs = [&](size_t one) { return tallies_.pairs(one, i); };
      const auto history = [&](size_t one) { return tallies_.history(one, i); };
      out.pairs.push_back(share_of(sum(pairs) / alike, pairs(row)));
      out.history.push_back(share_of(sum(history) / alike, history(row)));
    }
    return out;
  }

 private:
  // The row that is nearest to the mean of what its passes see.
  size_t typical_row(const Group& group) const {
    const auto count = static_cast<double>(group.rows.size());
    double pairs = 0, history = 0;
    for (const size_t row : group.rows) {
      pairs += tallies_.all_pairs(row) / count;
      history += tallies_.all_history(row) / count;
    }
    const auto distance = [&](size_t row) {
      const double missing = tallies_.all_history(row) > 0 || history <= 0 ? 0 : 1;
      return missing + std::abs(share_of(tallies_.all_pairs(row), pairs) - 1) +
             std::abs(share_of(tallies_.all_history(row), history) - 1);
    };
    return *std::min_element(group.rows.begin(), group.rows.end(),
                             [&](size_t a, size_t b) { return distance(a) < distance(b); });
  }

  const PassTallies& tallies_;
  std::span<const KvPlan> layers_;
};

// Where only some passes are tallied: as many tokens, and pairs, as the block has.
void correct(std::vector<PassSample>& samples, const PassTallies& tallies,
             std::span<const KvPlan> layers, int64_t sequences, int64_t prompt_tokens) {
  const auto row_of = [&](const PassSample& sample) {
    size_t row = 0;
    while (tallies.pass(row) != sample.pass) ++row;
    return row;
  };
  std::vector<size_t> rows;
  for (const PassSample& one : samples) rows.push_back(row_of(one));
  const auto of_all = static_cast<double>(sequences);
  double tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) tokens += samples[i].passes * tallies.tokens(rows[i]);
  for (PassSample& one : samples)
    one.passes *= of_all * static_cast<double>(prompt_tokens) / tokens;
  for (size_t group = 0; group < layers.size(); ++group) {
    double pairs = 0;
    for (size_t i = 0; i < samples.size(); ++i)
      pairs += samples[i].passes * samples[i].pairs[group] * tallies.pairs(rows[i], group);
    const double wanted = of_all * visible_pairs(0, prompt_tokens, layers[group].state.window);
    for (PassSample& one : samples) one.pairs[group] *= share_of(wanted, pairs);
  }
}
}  // namespace

double visible_pairs(int64_t first, int64_t count, int64_t window) noexcept {
  const int64_t growing = window > 0 ? std::clamp<int64_t>(window - first, 0, count) : count;
  const auto rows = static_cast<double>(growing);
  return rows * static_cast<double>(first) + rows * (rows + 1) / 2 +
         static_cast<double>(count - growing) * static_cast<double>(window);
}

PassTallies::PassTallies(std::span<const KvPlan> layers, int64_t chunk_tokens)
    : layers_(layers),
      chunk_tokens_(std::max<int64_t>(chunk_tokens, 1)),
      width_(2 + 2 * layers.size()) {}

void PassTallies::open(int64_t pass) {
  passes_.push_back(pass);
  values_.resize(values_.size() + width_);
}

void PassTallies::add_run(int64_t first, int64_t count, int64_t prompt_tokens, int64_t times,
                          bool has_history) {
  double* row = &values_[values_.size() - width_];
  const auto runs = static_cast<double>(times);
  row[0] += runs * static_cast<double>(count);
  if (first + count >= prompt_tokens) row[1] += runs;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t window = layers_[i].state.window;
    row[2 + 2 * i] += runs * visible_pairs(first, count, window);
    if (has_history) row[3 + 2 * i] += runs * history_of(first, count, chunk_tokens_, window);
  }
}

double PassTallies::all_pairs(size_t row) const noexcept {
  double sum = 0;
  for (size_t i = 0; i < layers_.size(); ++i)
    sum += static_cast<double>(layers_[i].num_layers) * pairs(row, i);
  return sum;
}

double PassTallies::all_history(size_t row) const noexcept {
  double sum = 0;
  for (size_t i = 0; i < layers_.size(); ++i)
    sum += static_cast<double>(layers_[i].num_layers) * history(row, i);
  return sum;
}

std::vector<PassSample> choose_samples(const PassTallies& tallies, std::span<const KvPlan> layers,
                                       int64_t count, int64_t most, int64_t sequences,
                                       int64_t prompt_tokens) {
  const Sampler sampler(tallies, layers);
  std::vector<size_t> rows(tallies.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::vector<PassSample> out;
  const bool ends_short =
      rows.size() > 1 && tallies.tokens(rows.back()) < tallies.tokens(rows.front());
  const auto full = std::span(rows).first(rows.size() - (ends_short ? 1 : 0));
  const double each =
      static_cast<double>(count - (ends_short ? 1 : 0)) / static_cast<double>(full.size());
  const size_t taken = std::min(full.size(), static_cast<size_t>(std::max<int64_t>(most, 1)));
  if (ends_short) out.push_back(sampler.sample_of({std::span(rows).last(1), 1}));
  if (taken < full.size())
    std::stable_sort(full.begin(), full.end(), [&](size_t a, size_t b) {
      const auto key = [&](size_t row) {
        const double history = tallies.all_history(row);
        return std::tuple{history > 0, tallies.all_pairs(row), history};
      };
      return key(a) < key(b);
    });
  for (size_t i = 0; i < taken; ++i) {
    const size_t begin = i * full.size() / taken;
    const size_t end = (i + 1) * full.size() / taken;
    out.push_back(sampler.sample_of({full.subspan(begin, end - begin), each}));
  }
  std::sort(out.begin(), out.end(),
            [](const PassSample& a, const PassSample& b) { return a.pass < b.pass; });
  if (static_cast<int64_t>(tallies.size()) < count)
    correct(out, tallies, layers, sequences, prompt_tokens);
  return out;
}

}  // namespace sluice::policy
