#pragma once
// Which experts the tokens of a run went to, layer by layer: what a recorded run says, and the file
// that it is kept in (docs/mixtures.md has the format, "route_trace v1", which other programs write
// too). Values; thread safe as such.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct RoutingTrace {
  /// A token in a layer with a router.
  struct Token {
    int64_t sequence = 0;  ///< the file's "turn"
    int64_t position = 0;  ///< of the token in it; the file's "step"
    int64_t pass = 0;      ///< rising: tokens of one pass ask for their experts together
    bool is_prompt = false;
    int32_t chosen = 0;  ///< experts
    size_t first = 0;    ///< of these, in Layer::experts
  };
  /// Tokens in the order in which they came.
  struct Layer {
    std::vector<Token> tokens;
    std::vector<int32_t> experts;
    int64_t expert_bytes = 0;  ///< of one expert; 0: the file does not say
  };

  static constexpr int64_t kMostLayers = 4096;
  static constexpr int64_t kMostExperts = 4096;

  std::string model;
  std::string family;         ///< the file's "arch"
  int64_t experts = 0;        ///< of a layer
  int64_t chosen = 0;         ///< of these, by a token
  std::vector<Layer> layers;  ///< [layers of the model]; without tokens: it has no router
};

/// Reads the text of such a file; `name` stands for it in errors. Columns are found by their names,
/// in any order, those not known are passed over. A file without the column "pass" is taken for one
/// sequence at a time: a pass is a turn's prompt, or one token. Errors: kFile with name and line.
RoutingTrace parse_routing_trace(std::string_view text, const std::string& name);

/// The lines before the tokens, as parse_routing_trace reads them. `dense_bytes`: by layer, what it
/// has beside its experts; of layers without expert_bytes nothing is said.
std::string routing_trace_head(const RoutingTrace& trace, const std::vector<int64_t>& dense_bytes);

/// A line: the `slot`th choice of a token, that of the largest weight first.
struct RoutingLine {
  RoutingTrace::Token token;
  int64_t layer = 0;
  int64_t slot = 0;
  int32_t expert = 0;
  float weight = 0;
};
void append_line(std::string& text, const RoutingLine& line);

}  // namespace sluice
