#pragma once
// Which of a layer's experts are in its slots of memory, and which of them goes when another comes:
// the one whose uses, each worth `decay` of itself a token later, add up to least. One knob: no
// decay (1) counts uses, a fast one (near 0) asks for the latest alone, as LRU does. Slots are a
// layer's own: a cache shared by layers that is smaller than a token's demand of all of them would
// hold nothing that is asked for again. Pure accounting: the memory belongs to whoever asks. Not
// thread safe.
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace sluice {

/// One layer's.
class ExpertCache {
 public:
  /// An expert that tokens go to, and how many of them.
  struct Use {
    int32_t expert = 0;
    int32_t tokens = 1;
  };
  /// Where an expert is, and whether it has to be loaded there first.
  struct Place {
    int32_t expert = 0;
    int32_t slot = 0;
    bool is_load = false;
    bool operator==(const Place&) const = default;
  };
  /// Experts asked for (each once a call), and those of them that were there.
  struct Counts {
    int64_t asked = 0;
    int64_t found = 0;
  };

  /// The first `slots` of `experts` experts are there. 0 < decay <= 1; 0 <= slots <= experts.
  ExpertCache(int64_t experts, int64_t slots, double decay);

  /// What `tokens` tokens ask for together: distinct experts, no more than there are slots, each of
  /// which has a slot from now on. The result has the order of `asked`.
  std::vector<Place> take(std::span<const Use> asked, int64_t tokens);
  /// -1: it is in no slot.
  int32_t slot_of(int32_t expert) const { return slots_[static_cast<size_t>(expert)]; }
  /// [slot]: who is there.
  std::span<const int32_t> held() const noexcept { return held_; }
  /// Puts these into the first slots, others behind them as they were; distinct, at most as many as
  /// there are slots. Nothing is counted.
  void hold(std::span<const int32_t> experts);
  /// Those in slots, by falling worth: whoever is told to hold as many of the first as it has slots
  /// for begins with the best.
  std::vector<int32_t> by_worth() const;
  int64_t slots() const noexcept { return static_cast<int64_t>(held_.size()); }
  int64_t experts() const noexcept { return static_cast<int64_t>(slots_.size()); }
  const Counts& counts() const noexcept { return counts_; }

 private:
  struct Worth {
    double uses = 0;    ///< at the time of the last
    int64_t last = -1;  ///< token count at the last use
    /// What orders experts by the worth of their uses at any time: its logarithm, with what all
    /// have in common left out, so that no decay makes it vanish.
    double rank = -std::numeric_limits<double>::infinity();
  };
  void use(const Use& one);
  int32_t victim() const;

  double keeps_;                 ///< ln of a use's worth a token later; 0: all of it
  int64_t now_ = 0;              ///< tokens
  std::vector<int32_t> slots_;   ///< [expert]
  std::vector<int32_t> held_;    ///< [slot]
  std::vector<Worth> worth_;     ///< [expert]
  std::vector<bool> is_wanted_;  ///< [expert]: by the call under way
  Counts counts_;
};

}  // namespace sluice
