#include "src/app/format_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::app {

namespace {
int64_t least_bytes(const std::vector<FormatOption>& options) {
  return std::min_element(
             options.begin(), options.end(),
             [](const FormatOption& a, const FormatOption& b) { return a.bytes < b.bytes; })
      ->bytes;
}

bool is_better(const FormatOption& a, const FormatOption& b) {
  return a.damage != b.damage ? a.damage < b.damage : a.bytes < b.bytes;
}

// The best options by how many steps of room the items so far may take.
class Rounds {
 public:
  Rounds(std::span<const std::vector<FormatOption>> items, int64_t room) : items_(items) {
    int64_t together = 0, widest = 0;
    for (const auto& options : items) {
      const int64_t least = least_bytes(options);
      int64_t most = 0;
      for (const FormatOption& option : options) {
        together = std::gcd(together, option.bytes - least);
        most = std::max(most, option.bytes - least);
      }
      widest += most;
    }
    room = std::min(room, widest);
    step_ = std::max<int64_t>(together, 1);
    if (room / step_ > kMostSteps) step_ = (room + kMostSteps - 1) / kMostSteps;
    steps_ = room / step_;
  }

  std::vector<size_t> choose() {
    const auto width = static_cast<size_t>(steps_ + 1);
    std::vector<double> damage(width, 0), next(width);
    std::vector<uint16_t> chosen(items_.size() * width);
    for (size_t item = 0; item < items_.size(); ++item) {
      const auto& options = items_[item];
      const int64_t least = least_bytes(options);
      for (size_t at = 0; at < width; ++at) {
        FormatOption best{0, std::numeric_limits<double>::infinity()};
        for (size_t option = 0; option < options.size(); ++option) {
          const int64_t steps = (options[option].bytes - least + step_ - 1) / step_;
          if (steps > static_cast<int64_t>(at)) continue;
          const FormatOption sum{options[option].bytes,
                                 damage[at - static_cast<size_t>(steps)] + options[option].damage};
          if (!is_better(sum, best)) continue;
          best = sum;
          chosen[item * width + at] = static_cast<uint16_t>(option);
        }
        next[at] = best.damage;
      }
      damage.swap(next);
    }
    // The least room with that damage.
    auto at = static_cast<int64_t>(std::find(damage.begin(), damage.end(), damage.back()) -
                                   damage.begin());
    std::vector<size_t> out(items_.size());
    for (size_t item = items_.size(); item-- > 0;) {
      const auto& options = items_[item];
      out[item] = chosen[item * width + static_cast<size_t>(at)];
      at -= (options[out[item]].bytes - least_bytes(options) + step_ - 1) / step_;
    }
    return out;
  }

 private:
  std::span<const std::vector<FormatOption>> items_;
  int64_t step_, steps_;
};

// What rounding to steps has left goes to single items, most damage a byte first.
void fill(std::span<const std::vector<FormatOption>> items, int64_t room,
          std::vector<size_t>& chosen) {
  while (true) {
    double best_rate = 0;
    size_t best_item = 0, best_option = 0;
    for (size_t item = 0; item < items.size(); ++item) {
      const FormatOption& now = items[item][chosen[item]];
      for (size_t option = 0; option < items[item].size(); ++option) {
        const FormatOption& other = items[item][option];
        const int64_t more = other.bytes - now.bytes;
        if (more > room || !(other.damage < now.damage)) continue;
        const double rate =
            (now.damage - other.damage) / static_cast<double>(std::max<int64_t>(more, 1));
        if (rate <= best_rate) continue;
        best_rate = rate;
        best_item = item;
        best_option = option;
      }
    }
    if (!(best_rate > 0)) return;
    room -= items[best_item][best_option].bytes - items[best_item][chosen[best_item]].bytes;
    chosen[best_item] = best_option;
  }
}
}  // namespace

std::optional<std::vector<size_t>> choose_options(std::span<const std::vector<FormatOption>> items,
                                                  int64_t most_bytes) {
  int64_t room = most_bytes;
  for (const auto& options : items) room -= least_bytes(options);
  if (room < 0) return std::nullopt;
  std::vector<size_t> chosen = Rounds(items, room).choose();
  room = most_bytes;
  for (size_t item = 0; item < items.size(); ++item) room -= items[item][chosen[item]].bytes;
  fill(items, room, chosen);
  return chosen;
}

}  // namespace sluice::app
