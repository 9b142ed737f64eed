#pragma once
// The interpreter behind read_torch_pickle: runs the opcodes that build plain values and refuses
// everything else. Values are nodes in one vector and refer to each other by number, so nothing
// recurses and nothing leaks. A "call" in the pickle is matched against a fixed list and builds a
// node; no code of the pickle's choosing ever runs. Private to pickle.cc and pickle_machine.cc.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/dtype.h"

namespace sluice::io {

using NodeId = uint32_t;

/// What a value on the machine's stack is.
enum class NodeKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kText,  // unicode or byte string
  kTuple,
  kList,     // also sets
  kDict,     // items: key, value, key, value, ...
  kGlobal,   // one of the known names
  kStorage,  // text: record key; integer: elements; dtype when its class names one
  kTensor,   // items: storage, offset, shape, strides
  kOpaque,   // a harmless value that no tensor needs: floats, huge integers, torch.device, ...
};

/// Functions and classes that a checkpoint may name.
enum class KnownName : uint8_t {
  kOrderedDict,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kSize,
  kTypedStorage,  // torch.FloatStorage and so on; the node's dtype says which
  kUntypedStorage,
  kDtype,     // torch.float32 and so on
  kHarmless,  // calls give kOpaque
};

/// A value on the machine's stack.
struct Node {
  NodeKind kind = NodeKind::kNone;
  KnownName name = KnownName::kHarmless;  // kGlobal
  std::optional<DType> dtype;             // kGlobal, kStorage, kTensor
  int64_t integer = 0;                    // kInt, kBool, kStorage
  std::string_view text;                  // kText, kStorage: points into the pickle
  std::vector<NodeId> items;              // kTuple, kList, kDict, kTensor
};

class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> pickle, const std::string& where);

  /// Runs to STOP and returns the value. Errors: kFile, as read_torch_pickle.
  NodeId run();
  const Node& node(NodeId id) const { return nodes_[id]; }

 private:
  [[noreturn]] void fail(const std::string& problem) const;
  [[noreturn]] void refuse_global(std::string_view module, std::string_view symbol) const;

  // Reading operands.
  uint64_t unsigned_operand(int bytes);
  std::string_view bytes_operand(uint64_t bytes);
  std::string_view line_operand();

  // The stack.
  NodeId make(Node node);
  void push(NodeId id);
  void push_new(Node node) { push(make(std::move(node))); }
  void push_int(int64_t value) { push_new({.kind = NodeKind::kInt, .integer = value}); }
  void push_text(std::string_view text) { push_new({.kind = NodeKind::kText, .text = text}); }
  NodeId pop();
  NodeId top() const;
  std::vector<NodeId> pop_to_mark();
  std::vector<NodeId> pop_several(size_t count);

  // Opcodes by family; each returns false when the opcode is not of its family.
  bool run_number(unsigned char opcode);
  bool run_text(unsigned char opcode);
  bool run_container(unsigned char opcode);
  bool run_stack(unsigned char opcode);
  bool run_object(unsigned char opcode);

  void push_decimal(std::string_view digits);
  void push_long(std::string_view little_endian);
  void remember(uint64_t slot);
  void recall(uint64_t slot);
  void append_items(const std::vector<NodeId>& items);
  void set_items(const std::vector<NodeId>& keys_and_values);
  void push_global(std::string_view module, std::string_view symbol);
  void push_persistent();
  void call();
  NodeId call_known(KnownName name, const std::vector<NodeId>& arguments);
  NodeId rebuild_tensor(const std::vector<NodeId>& arguments, bool has_dtype);
  void build();

  std::span<const std::byte> pickle_;
  const std::string& where_;
  size_t position_ = 0;
  std::vector<Node> nodes_;
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;  // stack heights; the stack is never popped below the last one
  std::vector<NodeId> memo_;
};

}  // namespace sluice::io
