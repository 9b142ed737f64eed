#include "src/base/kv_format.h"

namespace sluice {

std::string kv_format_name(const KvFormat& format) {
  if (format == kInt8KeysInt4Values) return "k8v4";
  switch (format.key_encoding) {
    case KvEncoding::kInt8: return "int8";
    case KvEncoding::kInt4: return "int4";
    case KvEncoding::kPlain: break;
  }
  return std::string(dtype_name(format.dtype));
}

std::optional<KvFormat> parse_kv_format(std::string_view name) noexcept {
  if (name == "int8") return KvFormat(KvEncoding::kInt8);
  if (name == "int4") return KvFormat(KvEncoding::kInt4);
  if (name == "k8v4") return kInt8KeysInt4Values;
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype || !is_weight_dtype(*dtype)) return {};
  return KvFormat(*dtype);
}

}  // namespace sluice
