// Beam searches in the batcher: their places and pages, forking, copies of pages that beams share.
#include <algorithm>
#include <iterator>

#include "src/base/error.h"
#include "src/engine/batching/batcher.h"

namespace sluice {

// Every beam may come to write all pages behind those that the prompt fills; of layers with a
// window each has so many at a time. One beam is a sequence of its own.
int64_t Batcher::most_pages_of_beams(size_t group, int64_t prompt_tokens, int64_t total,
                                     int64_t beams) const noexcept {
  const int64_t of_one = pools_.most_pages(group, total);
  if (beams == 1) return of_one;
  const int64_t shared = pools_.has_window(group) ? 0 : prompt_tokens / limits_.page_tokens;
  return shared + beams * (of_one - shared);
}

void Batcher::secure_beam(Sequence& sequence, std::vector<GroupCopy>& copies) {
  for (size_t group = 0; group < pools_.groups(); ++group) secure_beam(group, sequence, copies);
}

// A page for what the beam writes next, and one of its own in place of one that others read too.
void Batcher::secure_beam(size_t group, Sequence& sequence, std::vector<GroupCopy>& copies) {
  PageTable& reserve = sequence.group->reserve.groups[group].pages;
  GroupPages& own = sequence.pages.groups[group];
  PagePool& pool = pools_.pool(group);
  const auto take = [&](PageTable& table) {
    SLUICE_ASSERT(!reserve.empty(), "a beam search has all pages it may need");
    table.push_back(reserve.back());
    reserve.pop_back();
    return true;
  };
  pools_.pass(group, own, sequence.computed, [&](const PageRef& page) {
    PageTable one{page};
    if (pool.owners(page) == 1)
      reserve.push_back(page);
    else
      pool.release(one);
  });
  const auto written = static_cast<size_t>(sequence.computed / limits_.page_tokens);
  if (written < own.pages.size() && pool.owners(own.pages[written]) > 1) {
    PageTable shared{own.pages[written]};
    PageTable copy;
    take(copy);
    own.pages[written] = copy.front();
    copies.push_back({static_cast<int32_t>(group), {shared.front(), copy.front()}});
    pool.release(shared);
  }
  pools_.grow(group, own, static_cast<int64_t>(sequence.tokens.size()), take);
}

// Pages that nobody else has stay the group's.
void Batcher::take_back(BeamGroup& beams, SequencePages& pages) {
  for (size_t group = 0; group < pools_.groups(); ++group) {
    std::vector<PageRef> all;
    pools_.for_each(group, pages.groups[group], [&](const PageRef& page) { all.push_back(page); });
    // In order of position, as they were taken.
    for (auto page = all.rbegin(); page != all.rend(); ++page) {
      PageTable one{*page};
      if (pools_.pool(group).owners(*page) == 1)
        beams.reserve.groups[group].pages.push_back(*page);
      else
        pools_.pool(group).release(one);
    }
  }
  pages = {};
}

void Batcher::fork(const std::vector<std::unique_ptr<Sequence>>& beams,
                   std::span<const sampling::BeamSearch::Step> steps,
                   std::span<const guide::Guide::State> guide_states) {
  std::vector<std::unique_ptr<Sequence>> next;
  for (const auto& [parent, token] : steps) {
    auto& child = next.emplace_back(std::make_unique<Sequence>(*beams[parent]));
    child->beam = next.size() - 1;
    child->tokens.push_back(token);
    child->guide_state = guide_states[child->beam];
    pools_.share(child->pages);
  }
  for (const auto& beam : beams) take_back(*beam->group, beam->pages);
  std::move(next.begin(), next.end(), std::back_inserter(running_));
}

void Batcher::advance_beams(GenerationSink& sink) {
  std::vector<BeamGroup*> groups;
  for (const auto& sequence : running_)
    if (sequence->group && sequence->beam == 0 && !sequence->finished)
      groups.push_back(sequence->group.get());
  for (BeamGroup* group : groups) {
    const auto is_member = [&](const auto& sequence) { return sequence->group.get() == group; };
    const auto first = std::stable_partition(running_.begin(), running_.end(),
                                             [&](const auto& one) { return !is_member(one); });
    const auto end_all = [&](FinishReason reason) {
      for (auto it = first; it != running_.end(); ++it) (*it)->finished = reason;
    };
    const uint64_t id = (*first)->id;
    if (!group->refusal.empty()) {
      sink.on_refused(id, group->refusal);
      end_all(FinishReason::kCancelled);
      continue;
    }
    // A prompt that takes several passes brings nothing yet.
    if (std::any_of(group->candidates.begin(), group->candidates.end(),
                    [](const auto& of_beam) { return of_beam.empty(); }))
      continue;
    const auto steps = group->search.advance(group->candidates, group->alternatives);
    std::vector<guide::Guide::State> guide_states;
    try {
      for (const auto& [parent, token] : steps) {
        const Sequence& beam = **(first + static_cast<std::ptrdiff_t>(parent));
        guide_states.push_back(beam.guide ? beam.guide->after(beam.guide_state, token) : 0);
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUser) throw;
      sink.on_refused(id, error.text());
      end_all(FinishReason::kCancelled);
      continue;
    }
    if (steps.empty()) {
      const auto& found = group->search.hypotheses();
      SLUICE_ASSERT(!found.empty(), "a search ends with what it has found");
      sink.on_hypotheses(id, found);
      end_all(found.front().is_stopped ? FinishReason::kStop : FinishReason::kLength);
      continue;
    }
    group->candidates.assign(steps.size(), {});
    group->alternatives.assign(steps.size(), {});
    std::vector<std::unique_ptr<Sequence>> beams(std::make_move_iterator(first),
                                                 std::make_move_iterator(running_.end()));
    running_.erase(first, running_.end());
    fork(beams, steps, guide_states);
  }
}

}  // namespace sluice
