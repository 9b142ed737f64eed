#include "src/text/sentencepiece_model.h"

#include <cstring>

namespace sluice::text {

namespace {
// Protocol buffers' wire format: fields one after another, each a number, a kind and a value.
struct WireField {
  uint64_t number = 0;
  uint64_t value = 0;      // of kinds 0 (variable), 1 and 5 (8 and 4 bytes)
  std::string_view bytes;  // of kind 2
};

std::optional<uint64_t> take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (rest.empty()) return std::nullopt;
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

std::optional<WireField> take_field(std::string_view& rest) {
  const auto key = take_varint(rest);
  if (!key) return std::nullopt;
  WireField field;
  field.number = *key >> 3;
  const uint64_t kind = *key & 7;
  if (kind == 0) {
    const auto value = take_varint(rest);
    if (!value) return std::nullopt;
    field.value = *value;
    return field;
  }
  uint64_t size = kind == 1 ? 8 : kind == 5 ? 4 : 0;
  if (kind == 2) {
    const auto length = take_varint(rest);
    if (!length) return std::nullopt;
    size = *length;
  } else if (size == 0) {
    return std::nullopt;  // groups, which nobody writes any more
  }
  if (size > rest.size()) return std::nullopt;
  field.bytes = rest.substr(0, size);
  if (kind != 2) std::memcpy(&field.value, field.bytes.data(), size);
  rest.remove_prefix(size);
  return field;
}

/// Calls `read` with each field; whether the whole was well-formed.
template <typename Read>
bool each_field(std::string_view bytes, Read read) {
  while (!bytes.empty()) {
    const auto field = take_field(bytes);
    if (!field || !read(*field)) return false;
  }
  return true;
}

bool read_piece(std::string_view bytes, SentencePieceModel::Piece& piece) {
  return each_field(bytes, [&](const WireField& field) {
    if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof bits);
    }
    if (field.number == 3) piece.kind = static_cast<PieceKind>(field.value);
    return true;
  });
}

bool read_trainer(std::string_view bytes, SentencePieceModel& model) {
  return each_field(bytes, [&](const WireField& field) {
    if (field.number == 3) model.is_unigram = field.value == 1;
    if (field.number == 44) model.unknown_surface = field.bytes;
    return true;
  });
}

bool read_normalizer(std::string_view bytes, SentencePieceModel& model) {
  return each_field(bytes, [&](const WireField& field) {
    if (field.number == 3) model.adds_dummy_prefix = field.value != 0;
    if (field.number == 4) model.removes_extra_whitespaces = field.value != 0;
    return true;
  });
}
}  // namespace

std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  const bool is_whole = each_field(bytes, [&](const WireField& field) {
    if (field.number == 1) return read_piece(field.bytes, model.pieces.emplace_back());
    if (field.number == 2) return read_trainer(field.bytes, model);
    if (field.number == 3) return read_normalizer(field.bytes, model);
    return true;
  });
  if (!is_whole) return std::nullopt;
  return model;
}

std::string without_dummy_prefix(std::string bytes) {
  // A message given twice is merged, and the last of a field's values holds: normalizer_spec
  // (field 3) with add_dummy_prefix (field 3) = false.
  return bytes.append("\x1a\x02\x18\x00", 4);
}

}  // namespace sluice::text
