#pragma once
// How a mixture's router turns a row of scores, one for each expert, into the few experts that the
// row goes to and their weights. A plain value.
#include <cstdint>

namespace sluice {

struct RouterSpec {
  /// What scores become first: e^x / sum, 1 / (1 + e^-x), or nothing.
  enum class Scores : uint8_t { kSoftmax, kSigmoid, kAsTheyAre };
  /// What a group of experts is worth where whole groups are chosen first: its best, or the sum of
  /// its two best (arXiv:2405.04434, arXiv:2412.19437).
  enum class GroupWorth : uint8_t { kBest, kTwoBest };

  static constexpr int64_t kMostExperts = 1024;

  int64_t experts = 0;    ///< kMostExperts at most
  int64_t chosen = 0;     ///< of these, by a row
  float score_scale = 1;  ///< of scores, before anything else
  Scores scores = Scores::kSoftmax;
  int64_t groups = 1;       ///< of equally many experts each, one after the other
  int64_t kept_groups = 1;  ///< in which experts are chosen
  GroupWorth worth = GroupWorth::kBest;
  /// What an expert of another group counts as: minus infinity, or 0.
  bool others_count_zero = false;
  bool renormalises = false;          ///< weights are divided by their sum + `eps`
  float eps = 0;                      ///< there
  bool is_softmax_of_chosen = false;  ///< weights are the softmax of what was chosen
  bool is_sigmoid_of_chosen = false;  ///< or their sigmoids
  float scale = 1;                    ///< of weights, at the end
  /// A router's vector is a factor of each expert's weight at the end (Gemma 4), and corrects no
  /// score.
  bool vector_scales = false;

  bool operator==(const RouterSpec&) const = default;
};

/// One of a row's choices.
struct RoutedTo {
  int32_t expert = 0;
  float weight = 0;
};

}  // namespace sluice
