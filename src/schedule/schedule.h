#pragma once
// The schedule: a pure function of what is streamed (fixed) and what each pass computes. Column
// order (for each sublayer all micro-batches, then the next sublayer), a column at a time; the
// weights that the ring can take beside the current sublayer load in parts, spread over the current
// one's micro-batches. Of a mixture's layer small passes ask for experts when its route has run.
// No hardware, files or weights are needed to make one. Invariants: waits point backwards; a buffer
// is refilled only after the tasks that used it; the weight ring never holds more than its bytes.
// Not thread safe; one generator per stream of passes.
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/cache/expert_cache.h"
#include "src/schedule/host_stop.h"
#include "src/schedule/path.h"
#include "src/schedule/task.h"
#include "src/schedule/weight_ring.h"

namespace sluice {

/// A run of rows of one matrix that is loaded as one task.
struct SchedulePart {
  int64_t bytes = 0;      ///< as it lies in the ring
  bool from_disk = true;  ///< else from host memory (with a device)
  /// By class of pass, a bit each: those that load it.
  uint32_t classes = ~uint32_t{0};
  int32_t expert = -1;  ///< whose it is, of a layer whose experts have slots; -1: everybody's
  bool is_loaded_in(size_t pass_class) const noexcept { return (classes >> pass_class) & 1; }
};

/// The class of a pass, and the one that the next pass is expected to have; likewise whether its
/// layers load the experts that are asked for, when they are, or ahead all that are in no slot.
struct PassClasses {
  size_t now = 0;
  size_t next = 0;
  bool demands = false;
  bool next_demands = false;
  bool operator==(const PassClasses&) const = default;
};

/// Of a layer of a mixture whose experts are not all where they are computed: some have slots, and
/// who they are changes (src/cache/expert_cache.h).
struct ScheduleExperts {
  int64_t experts = 0;  ///< 0: it is no such layer
  int64_t slots = 0;
  /// Of each of an expert's matrices: the part of the first that is not resident among the
  /// sublayer's, the others follow. Of one matrix all are as large.
  std::vector<int32_t> first_parts = {};
  /// Experts [0, resident) are always where they are computed, and in no slot.
  int64_t resident = 0;
  /// Slots are at the stop below a device: passes that ask multiply there what is in them, the
  /// others send it up.
  bool is_below = false;
  /// All passes ask: none loads all through the ring.
  bool is_always_asked = false;
  /// Slots behind its own that hold guesses, for all layers whose guess_home this one is.
  int64_t guess_slots = 0;
  /// Whose slots behind its own hold what is guessed for this layer, being as large as its own; -1:
  /// nothing is guessed for it.
  int32_t guess_home = -1;

  /// That take their turns in slots.
  int64_t others() const noexcept { return experts - resident; }
  bool is_resident(int32_t expert) const noexcept { return expert < resident; }
  /// Number of an expert among those that take turns.
  int32_t turn_of(int32_t expert) const noexcept { return expert - static_cast<int32_t>(resident); }
};

/// What a column does, as far as the schedule knows.
struct ScheduleSublayer {
  std::vector<SchedulePart> parts;  ///< weights that are loaded in every pass of their classes
  bool has_attention = false;
  ScheduleExperts experts = {};  ///< whose parts each are an expert's; not together with attention
  int32_t state_group = 0;       ///< of one with attention: MicroBatchLoad::state's entry
  /// Of one that attends to what an earlier one keeps: that one; what moves is
  /// MicroBatchLoad::shared's entry, and waits for what the earlier one has written in this pass.
  int32_t reads_from = -1;
  int64_t streamed_bytes() const noexcept;  ///< of all classes together
  int64_t streamed_bytes(size_t pass_class) const noexcept;
  int64_t disk_bytes() const noexcept;  ///< of these, from disk
};

/// What a use of an expert is worth a token later, unless somebody knows better: better than LRU
/// where there are few slots, and as good with many, on the routing measured so far.
constexpr double kExpertDecay = 0.9;

/// What a micro-batch's route has found: the experts that its tokens go to.
struct Routed {
  std::vector<ExpertCache::Use> experts;  ///< distinct, rising
  int64_t tokens = 0;
  /// Distinct experts that the next layer with slots is expected to be asked for, the surest first.
  std::vector<int32_t> guessed = {};
};

/// Guesses of what a layer will be asked for that began to load before its route had run.
struct GuessCounts {
  int64_t guessed = 0;
  int64_t right = 0;  ///< of these, asked for
};

/// Memory for one expert: a slot of the sublayer `home`.
struct ExpertSlot {
  int32_t home = 0;
  int32_t slot = 0;
};

/// Which memory each layer's slots have; a right guess changes places with a slot.
struct ExpertMemory {
  std::vector<std::vector<ExpertSlot>> slots;  ///< [sublayer][slot]; empty: none has any
  std::vector<ExpertSlot> guesses;
};

/// A plan as far as the schedule knows it.
struct ScheduleShape {
  std::vector<ScheduleSublayer> sublayers;  ///< in pass order
  /// The hops of what does not lie where it is computed. At most two, with a ring or slots at the
  /// stop between.
  MachinePaths paths = paths_of_host();
  /// At least weight_ring_bytes(..., ahead 0): a whole sublayer however the ring is cut up, of
  /// whatever class.
  int64_t weight_ring_bytes = 0;
  double expert_decay = kExpertDecay;  ///< ExpertCache's
  /// Of parts that stop in host memory: at least the largest.
  int64_t host_ring_bytes = 0;
  int32_t kv_slots = 2;          ///< staging slots for KV that lives lower, in each tier it passes
  int32_t activation_slots = 3;  ///< staging slots for activations that live lower
  int32_t attention_slots = 3;   ///< exchange slots of attention on the host; at least 2
  /// Some micro-batches are attended on the host and others, of the same sequences, on the device.
  bool mixes_attention = false;
};

/// What attention in one layer of a group moves.
struct StateBytes {
  int64_t load = 0;   ///< of pages on disk that it reads
  int64_t store = 0;  ///< of pages on disk that this pass changes
  // With a device only:
  int64_t up = 0;    ///< of staged pages (host's and disk's) sent up
  int64_t down = 0;  ///< of staged pages changed by this pass and sent down
  /// Attention on the host: queries, keys and values sent down, outputs sent up; 0, 0: none. Pages
  /// on disk then stop in host memory.
  int64_t queries = 0;
  int64_t outputs = 0;

  bool operator==(const StateBytes&) const = default;
  bool attends_on_host() const noexcept { return queries > 0; }
};

/// One micro-batch of one pass. Byte counts are per sublayer visit.
struct MicroBatchLoad {
  std::vector<StateBytes> state;    ///< by group of layers; those left out move nothing
  int64_t activation_bytes = 0;     ///< hidden-state rows that live on disk between sublayers
  int64_t activation_up_bytes = 0;  ///< with a device: those in host memory or on disk
  /// Reads KV that the micro-batch before it writes in this pass (a prompt cut across
  /// micro-batches).
  bool continues_previous = false;
  /// By group: of layers that read what one of it keeps. They store nothing, and load what this
  /// pass has changed too.
  std::vector<StateBytes> shared = {};

  bool moves_like(const MicroBatchLoad& other) const {
    return state == other.state && shared == other.shared &&
           activation_bytes == other.activation_bytes &&
           activation_up_bytes == other.activation_up_bytes;
  }
  StateBytes state_of(int32_t group, bool is_reader) const noexcept {
    const std::vector<StateBytes>& all = is_reader ? shared : state;
    const auto index = static_cast<size_t>(group);
    return index < all.size() ? all[index] : StateBytes{};
  }
};

/// What the next tasks of a column depend on.
struct AwaitedRoute {
  TaskId task = kNoTask;  ///< the compute task that says what is needed
  int32_t sublayer = 0;
  int32_t micro_batch = 0;
};

/// The sublayer whose experts are guessed when that of `sublayer` has routed: the next of a pass
/// with slots, where its guesses have room; -1: none.
int32_t guessed_after(const std::vector<ScheduleSublayer>& sublayers, int32_t sublayer) noexcept;

/// Emits passes column by column; not thread safe.
class ScheduleGenerator {
 public:
  explicit ScheduleGenerator(ScheduleShape shape);

  /// One more pass; the one before must have no column left. With `more_follow`, its last columns
  /// already load the first weights of the next pass, so that the disk never rests between passes;
  /// where that turns out to be of a class with other parts, they are loaded once more.
  void begin_pass(std::vector<MicroBatchLoad> micro_batches, bool more_follow,
                  PassClasses classes = {});
  bool has_column() const noexcept { return running_.is_open; }
  /// The tasks of the next sublayer for all micro-batches. A sublayer with a route comes in pieces:
  /// while there is an awaited() route, its task must have ended and `routed` be what it found.
  /// Errors: none for a valid shape (asserted).
  std::vector<Task> next_column(const Routed& routed = {});
  std::optional<AwaitedRoute> awaited() const noexcept;
  /// Whether tasks of this pass may be on `lane`; a pass without the others never waits for them.
  bool uses(Lane lane) const noexcept { return running_.uses[lane]; }

  int64_t passes() const noexcept { return pass_; }  ///< of which all columns are given out
  /// Of a sublayer whose experts have slots, by ScheduleExperts::turn_of(); null: they don't. What
  /// it holds may be set before a pass begins that nothing was loaded ahead of.
  ExpertCache* expert_cache(size_t sublayer) noexcept;
  const ExpertCache* expert_cache(size_t sublayer) const noexcept;
  /// Of such a sublayer: what passes have asked for, resident experts too.
  ExpertCache::Counts expert_counts(size_t sublayer) const noexcept;
  /// Loads of wrong guesses, since the last call: where they have not begun they need not.
  std::vector<TaskId> take_dropped() { return std::exchange(demand_.dropped, {}); }
  const GuessCounts& guess_counts() const noexcept { return demand_.counts; }
  /// Where what is in slots lies; told to the generator of the next run with its caches.
  ExpertMemory expert_memory() const;
  void set_expert_memory(const ExpertMemory& memory);

 private:
  struct PendingLoad {
    int64_t running;
    int32_t part;
    int64_t offset;
  };
  /// Writes of KV that what reads the same bytes later waits for.
  struct KvStores {
    std::vector<TaskId> last_pass;
    std::vector<TaskId> this_pass;
  };
  /// By sublayer. Where attention is mixed also by the lane that writes: a pass that writes on one
  /// of them says nothing of the others.
  struct KvWrites {
    std::vector<KvStores> all;
    std::vector<KvStores> by_host, over_link, to_disk;
    /// Of sublayers that later ones read: what has written in this pass.
    struct Shared {
      bool is_read = false;
      std::vector<std::pair<int32_t, TaskId>> by;  ///< with its micro-batch
    };
    std::vector<Shared> shared;
  };
  struct MicroBatchState {
    TaskId kv_load = kNoTask;
    TaskId activation_load = kNoTask;
    TaskId activation_store = kNoTask;
    TaskId compute = kNoTask;  ///< last compute task of the current sublayer
    TaskId host_attention = kNoTask;
    int32_t kv_slot = -1;
    int32_t activation_slot = -1;
    int32_t attention_slot = -1;
    int32_t kv_loaded_sublayer = -1;
    int32_t activation_loaded_sublayer = -1;
  };
  using Tasks = std::vector<Task>;

  template <typename Work>
  Task& add(Tasks& out, TaskKind kind, Lane lane, int32_t sublayer, int32_t micro_batch,
            Work&& work);
  const MicroBatchLoad& load_of(int32_t micro_batch) const {
    return running_.loads[static_cast<size_t>(micro_batch)];
  }
  MicroBatchState& state_of(int32_t micro_batch) {
    return running_.state[static_cast<size_t>(micro_batch)];
  }
  const ScheduleSublayer& column() const {
    return shape_.sublayers[static_cast<size_t>(running_.sublayer)];
  }
  /// Whether the pass computes its column in pieces, experts as they come.
  bool has_route() const noexcept {
    return running_.classes.demands && column().experts.experts > 0;
  }
  void find_used_lanes();
  bool have_same_parts(size_t one, size_t other) const noexcept;
  void drop_loads_ahead();
  void begin_column(Tasks& out);
  void end_column();
  void add_step(Tasks& out, int32_t micro_batch);
  void load_share(Tasks& out, int32_t micro_batch);
  // Weights.
  /// Of the pass under way, or of the one that follows.
  size_t class_of(int64_t running) const noexcept {
    return running / static_cast<int64_t>(shape_.sublayers.size()) == pass_ ? running_.classes.now
                                                                            : running_.classes.next;
  }
  bool demands(int64_t running) const noexcept {
    return running / static_cast<int64_t>(shape_.sublayers.size()) == pass_
               ? running_.classes.demands
               : running_.classes.next_demands;
  }
  bool is_loaded(int64_t running, const SchedulePart& part) const;
  void plan_weight_loads(int64_t running);
  void load_weights(Tasks& out, size_t first, size_t last, int32_t micro_batch);
  TaskId load_part(Tasks& out, const PendingLoad& load, int32_t micro_batch,
                   std::optional<ExpertSlot> slot, std::vector<TaskId> waits);
  TaskId read_to_host(Tasks& out, const PendingLoad& load, Lane lane, int32_t micro_batch,
                      int64_t bytes, int64_t* host_offset);
  // Experts (schedule_experts.cc).
  void begin_routes(Tasks& out);
  void add_route(Tasks& out, int32_t micro_batch);
  void add_after_route(Tasks& out, int32_t micro_batch, const Routed& routed);
  struct LoadedExpert {
    ExpertPlace place;
    std::vector<TaskId> loads;
    bool was_guessed = false;
  };
  LoadedExpert load_expert(Tasks& out, int32_t micro_batch, int32_t expert, int32_t slot);
  std::vector<TaskId> load_expert_to(Tasks& out, int32_t sublayer, int32_t turn,
                                     int32_t micro_batch, const ExpertSlot& to,
                                     const std::vector<TaskId>& waits);
  /// `slot` of the sublayer's, as tasks name it.
  ExpertPlace place_of(int32_t sublayer, int32_t expert, int32_t slot) const;
  // Guesses (schedule_guesses.cc).
  bool may_guess() const noexcept;
  void drop_guesses(int32_t sublayer);
  void add_guesses(Tasks& out, int32_t micro_batch);
  /// The slot below a device that an expert's part is in, if one is; else -1.
  int32_t slot_below(const PendingLoad& load) const;
  TaskId send_held(Tasks& out, const PendingLoad& load, int32_t micro_batch, int32_t slot,
                   std::vector<TaskId> waits);
  TaskId compute_experts(Tasks& out, int32_t micro_batch, std::vector<ExpertPlace> places,
                         std::vector<TaskId> waits);
  void load_and_compute(Tasks& out, int32_t micro_batch, std::span<const ExpertCache::Use> away);
  void use_held(Task& task);
  // KV and activations that live lower (schedule_state.cc).
  struct HopUse {
    bool is_used;  ///< by a micro-batch, also where this time no byte moves
    int64_t up_bytes;
    int64_t down_bytes;
  };
  const std::vector<Hop>& state_hops() const noexcept { return shape_.paths.state.hops; }
  static HopUse kv_use(const StateBytes& bytes, const Hop& hop) noexcept;
  HopUse activation_use(const MicroBatchLoad& load, const Hop& hop) const noexcept;
  size_t kv_hops(const StateBytes& bytes) const noexcept;
  StateMove move_of(size_t hop, int32_t slot, bool goes_on) const noexcept;
  bool moves_kv(const StateBytes& bytes) const noexcept;
  void wait_for_writes(Task& task, int32_t sublayer, bool continues_previous) const;
  void wait_for_source(Task& task, int32_t source, int32_t micro_batch) const;
  void add_shared_write(int32_t sublayer, int32_t micro_batch, TaskId task);
  void load_kv(Tasks& out, int32_t sublayer, int32_t micro_batch);
  void store_kv(Tasks& out, int32_t micro_batch, TaskId after);
  bool moves_activations(const MicroBatchLoad& load) const noexcept;
  void load_activations(Tasks& out, int32_t sublayer, int32_t micro_batch);
  void store_activations(Tasks& out, int32_t micro_batch);
  void prefetch(Tasks& out, int32_t micro_batch);
  // Compute.
  void compute(Tasks& out, int32_t micro_batch);
  void attend_on_host(Tasks& out, int32_t micro_batch);
  void finish_attention(Tasks& out, int32_t micro_batch);
  bool is_cut(const MicroBatchLoad& load) const noexcept;
  /// What a micro-batch moves in a sublayer's attention.
  StateBytes state_bytes(int32_t sublayer, int32_t micro_batch) const noexcept;

  /// The pass begun.
  struct RunningPass {
    std::vector<MicroBatchLoad> loads;
    PassClasses classes;
    bool more_follow = false;
    bool is_open = false;
    int32_t sublayer = 0;  ///< whose column is next or, with a route, under way
    LaneSet uses;          ///< lanes
    std::vector<MicroBatchState> state;
  };
  /// The ring, and how far ahead of the columns it is filled.
  struct WeightLoads {
    WeightRing ring;
    /// Running number (pass * sublayers + index) of the sublayer to place next, and its first part
    /// that has no place yet.
    int64_t next_load = 0;
    int32_t next_part = 0;
    std::vector<PendingLoad> pending;        ///< placed in this column
    size_t late = 0;                         ///< of these, at the front: the column's own
    std::vector<std::vector<TaskId>> loads;  ///< by sublayer: of its current contents
    /// By sublayer: of its parts, -1 of those that the pass does not load.
    std::vector<std::vector<int64_t>> offsets;
    /// Loads of a class that did not come, whose room this pass fills again.
    std::vector<TaskId> dropped;
  };
  /// Of a sublayer whose experts have slots.
  struct ExpertSlots {
    ExpertCache cache;
    std::vector<TaskId> users;  ///< [slot] the last task that computed with it
    /// [slot] What has sent it up for one sublayer's turn, and nobody has computed with so far: a
    /// pass that does not come leaves such behind.
    struct Sent {
      int64_t running = -1;
      std::vector<TaskId> tasks;
    };
    std::vector<Sent> sent;
    std::vector<ExpertSlot> memory;  ///< [slot] which it is
    int64_t asked_resident = 0;      ///< times that a pass asked for one that is
  };
  /// Room for an expert that a layer may be asked for.
  struct Guess {
    ExpertSlot memory;
    int32_t sublayer = -1;      ///< whose expert it holds; -1: nobody's
    int32_t turn = -1;          ///< its number in turns
    std::vector<TaskId> loads;  ///< of that
    std::vector<TaskId> users;  ///< to be waited for before it is filled
  };
  struct Demand {
    int32_t awaited = -1;  ///< micro-batch whose route the column waits for
    std::vector<std::optional<ExpertSlots>> experts;  ///< [sublayer]
    std::vector<Guess> guesses;
    std::vector<int32_t> guessed;  ///< in this column, for the next
    std::vector<TaskId> loads;     ///< in this column, of what was asked for
    std::vector<TaskId> dropped;
    GuessCounts counts;
  };
  /// By hop and slot at its upper stop: the last task that must end before it is filled again.
  struct Slots {
    std::vector<std::vector<TaskId>> kv;
    std::vector<std::vector<TaskId>> activations;
    std::vector<TaskId> attention;
    struct {
      int64_t kv = 0;
      int64_t activations = 0;
      int64_t attention = 0;
    } taken;
  };

  ScheduleShape shape_;
  TaskId next_id_ = 0;
  int64_t pass_ = 0;
  RunningPass running_;
  TaskId last_column_compute_ = kNoTask;  ///< last compute task of the column before
  WeightLoads weights_;
  Demand demand_;
  HostStop host_stop_;
  Slots slots_;
  KvWrites kv_writes_;
};

template <typename Work>
Task& ScheduleGenerator::add(Tasks& out, TaskKind kind, Lane lane, int32_t sublayer,
                             int32_t micro_batch, Work&& work) {
  Task& task = out.emplace_back();
  task.id = next_id_++;
  task.kind = kind;
  task.lane = lane;
  task.pass = pass_;
  task.sublayer = sublayer;
  task.micro_batch = micro_batch;
  task.work = std::forward<Work>(work);
  return task;
}

}  // namespace sluice
