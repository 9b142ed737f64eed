#include "io/checkpoint/pickle_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "io/checkpoint/pickle.h"
#include "io/checkpoint/tensor_entry.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {

// Opcodes are the bytes of Python's pickletools documentation.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloatLine = 'F',
  kIntLine = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLongLine = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kStringLine = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicodeLine = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

struct KnownGlobal {
  std::string_view module;
  std::string_view symbol;
  KnownName name;
  std::optional<DType> dtype;
};

constexpr std::array kKnownGlobals = {
    KnownGlobal{"collections", "OrderedDict", KnownName::kOrderedDict, {}},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v2", KnownName::kRebuildTensorV2, {}},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v3", KnownName::kRebuildTensorV3, {}},
    KnownGlobal{"torch._utils", "_rebuild_parameter", KnownName::kRebuildParameter, {}},
    KnownGlobal{"torch._utils", "_rebuild_parameter_with_state", KnownName::kRebuildParameter, {}},
    KnownGlobal{"torch", "Size", KnownName::kSize, {}},
    KnownGlobal{"torch", "device", KnownName::kHarmless, {}},
    KnownGlobal{"torch.storage", "UntypedStorage", KnownName::kUntypedStorage, {}},
    KnownGlobal{"torch", "UntypedStorage", KnownName::kUntypedStorage, {}},
    KnownGlobal{"torch", "FloatStorage", KnownName::kTypedStorage, DType::kF32},
    KnownGlobal{"torch", "HalfStorage", KnownName::kTypedStorage, DType::kF16},
    KnownGlobal{"torch", "BFloat16Storage", KnownName::kTypedStorage, DType::kBF16},
    KnownGlobal{"torch", "DoubleStorage", KnownName::kTypedStorage, DType::kF64},
    KnownGlobal{"torch", "LongStorage", KnownName::kTypedStorage, DType::kI64},
    KnownGlobal{"torch", "IntStorage", KnownName::kTypedStorage, DType::kI32},
    KnownGlobal{"torch", "ShortStorage", KnownName::kTypedStorage, DType::kI16},
    KnownGlobal{"torch", "CharStorage", KnownName::kTypedStorage, DType::kI8},
    KnownGlobal{"torch", "ByteStorage", KnownName::kTypedStorage, DType::kU8},
    KnownGlobal{"torch", "BoolStorage", KnownName::kTypedStorage, DType::kBool},
    KnownGlobal{"torch", "float32", KnownName::kDtype, DType::kF32},
    KnownGlobal{"torch", "float16", KnownName::kDtype, DType::kF16},
    KnownGlobal{"torch", "bfloat16", KnownName::kDtype, DType::kBF16},
    KnownGlobal{"torch", "float64", KnownName::kDtype, DType::kF64},
    KnownGlobal{"torch", "int64", KnownName::kDtype, DType::kI64},
    KnownGlobal{"torch", "int32", KnownName::kDtype, DType::kI32},
    KnownGlobal{"torch", "int16", KnownName::kDtype, DType::kI16},
    KnownGlobal{"torch", "int8", KnownName::kDtype, DType::kI8},
    KnownGlobal{"torch", "uint8", KnownName::kDtype, DType::kU8},
    KnownGlobal{"torch", "bool", KnownName::kDtype, DType::kBool},
};

}  // namespace

PickleMachine::PickleMachine(std::span<const std::byte> pickle, const std::string& where)
    : pickle_(pickle), where_(where) {}

void PickleMachine::fail(const std::string& problem) const {
  throw Error(ErrorKind::kFile,
              fmt::format("{}: pickle at byte {}: {}", where_, position_, problem),
              "the file is damaged or not a PyTorch state dict: download it again, or convert it "
              "to safetensors");
}

void PickleMachine::refuse_global(std::string_view module, std::string_view symbol) const {
  throw Error(ErrorKind::kFile,
              fmt::format("{}: the pickle asks for {}, which is refused: only tensors and plain "
                          "values are read, and "
                          "nothing that a file names is executed",
                          where_, in_quotes(fmt::format("{}.{}", module, symbol))),
              "load it in a Python that you trust and save its state dict as safetensors");
}

NodeId PickleMachine::run() {
  while (true) {
    const auto opcode = static_cast<unsigned char>(unsigned_operand(1));
    if (opcode == kStop) {
      if (!marks_.empty() || stack_.size() != 1) fail("ends with an unfinished value");
      return stack_.back();
    }
    if (run_stack(opcode) || run_container(opcode) || run_text(opcode) || run_number(opcode) ||
        run_object(opcode))
      continue;
    --position_;
    fail(fmt::format("opcode 0x{:02x} is not one that a PyTorch checkpoint needs, and is refused",
                     opcode));
  }
}

uint64_t PickleMachine::unsigned_operand(int bytes) {
  uint64_t value = 0;
  const std::string_view raw = bytes_operand(static_cast<uint64_t>(bytes));
  for (size_t i = 0; i < raw.size(); ++i)
    value |= uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
  return value;
}

std::string_view PickleMachine::bytes_operand(uint64_t bytes) {
  if (bytes > pickle_.size() - position_) fail("ends in the middle of a value");
  const std::string_view raw(reinterpret_cast<const char*>(pickle_.data()) + position_,
                             static_cast<size_t>(bytes));
  position_ += raw.size();
  return raw;
}

std::string_view PickleMachine::line_operand() {
  const std::string_view rest(reinterpret_cast<const char*>(pickle_.data()) + position_,
                              pickle_.size() - position_);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail("ends in the middle of a line");
  position_ += end + 1;
  return rest.substr(0, end);
}

NodeId PickleMachine::make(Node node) {
  if (static_cast<int64_t>(nodes_.size()) >= kMaxPickleNodes)
    fail(fmt::format("more than {} values", kMaxPickleNodes));
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

void PickleMachine::push(NodeId id) {
  if (static_cast<int64_t>(stack_.size()) >= kMaxPickleNodes) fail("the stack grows too high");
  stack_.push_back(id);
}

NodeId PickleMachine::pop() {
  const NodeId id = top();
  stack_.pop_back();
  return id;
}

NodeId PickleMachine::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    fail("takes a value from an empty stack");
  return stack_.back();
}

std::vector<NodeId> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("needs a mark that is not there");
  std::vector<NodeId> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                            stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

std::vector<NodeId> PickleMachine::pop_several(size_t count) {
  std::vector<NodeId> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

bool PickleMachine::run_stack(unsigned char opcode) {
  switch (opcode) {
    case kMark:
      if (static_cast<int64_t>(marks_.size()) >= kMaxPickleNodes) fail("too many marks");
      marks_.push_back(stack_.size());
      return true;
    case kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();  // as Python: POP right after MARK takes the mark
      } else {
        pop();
      }
      return true;
    case kPopMark: pop_to_mark(); return true;
    case kDup: push(top()); return true;
    case kBinPut: remember(unsigned_operand(1)); return true;
    case kLongBinPut: remember(unsigned_operand(4)); return true;
    case kMemoize: remember(memo_.size()); return true;
    case kBinGet: recall(unsigned_operand(1)); return true;
    case kLongBinGet: recall(unsigned_operand(4)); return true;
    case kProto:
      if (const uint64_t protocol = unsigned_operand(1); protocol < 2 || protocol > 5)
        fail(fmt::format("protocol {} is not known (2 to 5 are)", protocol));
      return true;
    case kFrame: unsigned_operand(8); return true;  // a hint for buffered readers
    default: return false;
  }
}

void PickleMachine::remember(uint64_t slot) {
  constexpr NodeId kUnset = UINT32_MAX;
  if (slot >= static_cast<uint64_t>(kMaxPickleNodes))
    fail(fmt::format("memo slot {} is too large", slot));
  // Slots are numbered as they come, so one far ahead is a lie that would only cost memory.
  if (slot > 2 * (nodes_.size() + memo_.size()) + 256)
    fail(fmt::format("memo slot {} is out of order", slot));
  if (slot >= memo_.size()) memo_.resize(slot + 1, kUnset);
  memo_[slot] = top();
}

void PickleMachine::recall(uint64_t slot) {
  if (slot >= memo_.size() || memo_[slot] >= nodes_.size())
    fail(fmt::format("memo slot {} is empty", slot));
  push(memo_[slot]);
}

bool PickleMachine::run_container(unsigned char opcode) {
  switch (opcode) {
    case kEmptyTuple: push_new({.kind = NodeKind::kTuple}); return true;
    case kTuple1: push_new({.kind = NodeKind::kTuple, .items = pop_several(1)}); return true;
    case kTuple2: push_new({.kind = NodeKind::kTuple, .items = pop_several(2)}); return true;
    case kTuple3: push_new({.kind = NodeKind::kTuple, .items = pop_several(3)}); return true;
    case kTuple: push_new({.kind = NodeKind::kTuple, .items = pop_to_mark()}); return true;
    case kEmptyList:
    case kEmptySet: push_new({.kind = NodeKind::kList}); return true;
    case kList:
    case kFrozenSet: push_new({.kind = NodeKind::kList, .items = pop_to_mark()}); return true;
    case kEmptyDict: push_new({.kind = NodeKind::kDict}); return true;
    case kDict: {
      const std::vector<NodeId> items = pop_to_mark();
      push_new({.kind = NodeKind::kDict});
      set_items(items);
      return true;
    }
    case kAppend: append_items(pop_several(1)); return true;
    case kAppends:
    case kAddItems: append_items(pop_to_mark()); return true;
    case kSetItem: set_items(pop_several(2)); return true;
    case kSetItems: set_items(pop_to_mark()); return true;
    default: return false;
  }
}

void PickleMachine::append_items(const std::vector<NodeId>& items) {
  Node& list = nodes_[top()];
  if (list.kind != NodeKind::kList) fail("appends to what is not a list");
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void PickleMachine::set_items(const std::vector<NodeId>& keys_and_values) {
  Node& dict = nodes_[top()];
  if (dict.kind != NodeKind::kDict) fail("sets items of what is not a dict");
  if (keys_and_values.size() % 2 != 0) fail("a dict has a key without a value");
  dict.items.insert(dict.items.end(), keys_and_values.begin(), keys_and_values.end());
}

bool PickleMachine::run_text(unsigned char opcode) {
  switch (opcode) {
    case kShortBinUnicode:
    case kShortBinString:
    case kShortBinBytes: push_text(bytes_operand(unsigned_operand(1))); return true;
    case kBinUnicode:
    case kBinString:
    case kBinBytes: push_text(bytes_operand(unsigned_operand(4))); return true;
    case kBinUnicode8:
    case kBinBytes8:
    case kByteArray8: push_text(bytes_operand(unsigned_operand(8))); return true;
    case kUnicodeLine: push_text(line_operand()); return true;
    case kStringLine: {
      const std::string_view line = line_operand();
      const bool is_quoted =
          line.size() >= 2 && line.front() == line.back() && (line[0] == '\'' || line[0] == '"');
      if (!is_quoted) fail("a string without quotes");
      push_text(line.substr(1, line.size() - 2));
      return true;
    }
    default: return false;
  }
}

bool PickleMachine::run_number(unsigned char opcode) {
  switch (opcode) {
    case kNone: push_new({.kind = NodeKind::kNone}); return true;
    case kNewTrue: push_new({.kind = NodeKind::kBool, .integer = 1}); return true;
    case kNewFalse: push_new({.kind = NodeKind::kBool, .integer = 0}); return true;
    case kBinInt: push_int(static_cast<int32_t>(unsigned_operand(4))); return true;
    case kBinInt1: push_int(static_cast<int64_t>(unsigned_operand(1))); return true;
    case kBinInt2: push_int(static_cast<int64_t>(unsigned_operand(2))); return true;
    case kLong1: push_long(bytes_operand(unsigned_operand(1))); return true;
    case kLong4: push_long(bytes_operand(unsigned_operand(4))); return true;
    case kIntLine:
    case kLongLine: push_decimal(line_operand()); return true;
    case kBinFloat:
      bytes_operand(8);
      push_new({.kind = NodeKind::kOpaque});
      return true;
    case kFloatLine:
      line_operand();
      push_new({.kind = NodeKind::kOpaque});
      return true;
    default: return false;
  }
}

void PickleMachine::push_decimal(std::string_view digits) {
  if (digits == "00" || digits == "01") {  // protocol 0's False and True
    push_new({.kind = NodeKind::kBool, .integer = digits == "01"});
    return;
  }
  if (digits.ends_with('L')) digits.remove_suffix(1);
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (problem == std::errc() && end == digits.data() + digits.size()) {
    push_int(value);
  } else if (problem == std::errc::result_out_of_range) {
    push_new({.kind = NodeKind::kOpaque});
  } else {
    fail("a number that is none");
  }
}

void PickleMachine::push_long(std::string_view little_endian) {
  if (little_endian.size() > 8) {
    push_new({.kind = NodeKind::kOpaque});
    return;
  }
  uint64_t bits = !little_endian.empty() && (little_endian.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
  for (size_t i = little_endian.size(); i-- > 0;)
    bits = bits << 8 | static_cast<unsigned char>(little_endian[i]);
  push_int(static_cast<int64_t>(bits));
}

bool PickleMachine::run_object(unsigned char opcode) {
  switch (opcode) {
    case kGlobal: {
      const std::string_view module = line_operand();
      push_global(module, line_operand());
      return true;
    }
    case kStackGlobal: {
      const std::vector<NodeId> names = pop_several(2);
      if (nodes_[names[0]].kind != NodeKind::kText || nodes_[names[1]].kind != NodeKind::kText)
        fail("names a global by what is not text");
      push_global(nodes_[names[0]].text, nodes_[names[1]].text);
      return true;
    }
    case kBinPersId: push_persistent(); return true;
    case kReduce:
    case kNewObj: call(); return true;
    case kBuild: build(); return true;
    default: return false;
  }
}

void PickleMachine::push_global(std::string_view module, std::string_view symbol) {
  const auto* const known =
      std::find_if(kKnownGlobals.begin(), kKnownGlobals.end(), [&](const KnownGlobal& global) {
        return global.module == module && global.symbol == symbol;
      });
  if (known == kKnownGlobals.end()) refuse_global(module, symbol);
  push_new({.kind = NodeKind::kGlobal, .name = known->name, .dtype = known->dtype});
}

// ('storage', storage class, record key, device, elements)
void PickleMachine::push_persistent() {
  const Node& id = nodes_[pop()];
  const bool is_tuple = id.kind == NodeKind::kTuple && id.items.size() >= 5;
  const auto part = [&](size_t i) -> const Node& { return nodes_[id.items[i]]; };
  if (!is_tuple || part(0).kind != NodeKind::kText || part(0).text != "storage" ||
      part(1).kind != NodeKind::kGlobal || part(2).kind != NodeKind::kText ||
      part(4).kind != NodeKind::kInt)
    fail("refers to something that is not a tensor storage");
  const Node& storage_class = part(1);
  if (storage_class.name != KnownName::kTypedStorage &&
      storage_class.name != KnownName::kUntypedStorage)
    fail("has a storage of an unknown class");
  if (part(4).integer < 0) fail("has a storage of negative size");
  // Made apart: push_new may move the nodes that these references point into.
  Node storage{.kind = NodeKind::kStorage,
               .dtype = storage_class.dtype,
               .integer = part(4).integer,
               .text = part(2).text};
  push_new(std::move(storage));
}

void PickleMachine::call() {
  const NodeId arguments = pop();
  const NodeId callee = pop();
  if (nodes_[callee].kind != NodeKind::kGlobal) fail("calls what is not a known name");
  if (nodes_[arguments].kind != NodeKind::kTuple) fail("calls with arguments that are not a tuple");
  push(call_known(nodes_[callee].name, nodes_[arguments].items));
}

// `arguments` lie in nodes_ and die with the next make().
NodeId PickleMachine::call_known(KnownName name, const std::vector<NodeId>& arguments) {
  switch (name) {
    case KnownName::kOrderedDict:
      if (!arguments.empty()) fail("makes an OrderedDict from something");
      return make({.kind = NodeKind::kDict});
    case KnownName::kSize:
      if (arguments.size() != 1 || nodes_[arguments[0]].kind != NodeKind::kTuple)
        fail("makes a torch.Size from what is not a tuple");
      return arguments[0];
    case KnownName::kRebuildTensorV2: return rebuild_tensor(arguments, false);
    case KnownName::kRebuildTensorV3: return rebuild_tensor(arguments, true);
    case KnownName::kRebuildParameter:
      if (arguments.empty() || nodes_[arguments[0]].kind != NodeKind::kTensor)
        fail("makes a parameter from what is not a tensor");
      return arguments[0];
    case KnownName::kHarmless: return make({.kind = NodeKind::kOpaque});
    default: fail("calls a name that cannot be called");
  }
}

// v2: storage, offset, shape, strides, requires_grad, hooks[, metadata]; v3 has the element type
// after the hooks.
NodeId PickleMachine::rebuild_tensor(const std::vector<NodeId>& items, bool has_dtype) {
  if (items.size() < (has_dtype ? 7u : 4u) || nodes_[items[0]].kind != NodeKind::kStorage ||
      nodes_[items[1]].kind != NodeKind::kInt || nodes_[items[2]].kind != NodeKind::kTuple ||
      nodes_[items[3]].kind != NodeKind::kTuple)
    fail("rebuilds a tensor from the wrong arguments");
  std::optional<DType> dtype = nodes_[items[0]].dtype;
  if (has_dtype) {
    const Node& named = nodes_[items[6]];
    if (named.kind != NodeKind::kGlobal || named.name != KnownName::kDtype)
      fail("a tensor without an element type");
    dtype = named.dtype;
  }
  if (!dtype) fail("a tensor on untyped storage without an element type");
  return make(
      {.kind = NodeKind::kTensor, .dtype = dtype, .items = {items.begin(), items.begin() + 4}});
}

void PickleMachine::build() {
  pop();  // the state: attributes such as _metadata, which no tensor needs
  const NodeKind kind = nodes_[top()].kind;
  if (kind != NodeKind::kDict && kind != NodeKind::kTensor && kind != NodeKind::kOpaque)
    fail("sets attributes of what has none");
}

}  // namespace sluice::io
