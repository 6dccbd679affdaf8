// ModelSpec as JSON. Every field is always written and always required, so a file says all that it means.
#include <array>

#include "base/error.h"
#include "spec/json_fields.h"
#include "spec/model_spec.h"

namespace lapidary {
namespace {

constexpr int64_t kVersion = 1;
constexpr std::array kActivations = {Activation::gelu_tanh, Activation::silu};
constexpr std::array kRopeKinds = {RopeKind::plain, RopeKind::proportional, RopeKind::llama3,
                                   RopeKind::divisors};

// Writes objects in the order of the struct, two blanks a level; small enough not to need a library.
class Writer {
 public:
  void open(std::string_view key) { field(key, "{"), depth_ += 1, first_ = true; }
  void close() { depth_ -= 1, line(), out_ += '}', first_ = false; }
  void number(std::string_view key, int64_t value) { field(key, fmt::format("{}", value)); }
  void number(std::string_view key, double value) { field(key, json_number(value, key)); }
  void flag(std::string_view key, bool value) { field(key, value ? "true" : "false"); }
  void name(std::string_view key, std::string_view value) { field(key, fmt::format("\"{}\"", value)); }
  void null(std::string_view key) { field(key, "null"); }
  void raw(std::string_view key, std::string_view text) { field(key, text); }
  void open_list(std::string_view key) { field(key, "["), depth_ += 1, first_ = true; }
  void close_list() { depth_ -= 1, line(), out_ += ']', first_ = false; }
  std::string take() { return std::move(out_) + "\n"; }

 private:
  void line() { out_ += '\n', out_.append(static_cast<size_t>(depth_) * 2, ' '); }
  void field(std::string_view key, std::string_view text) {
    if (!first_) out_ += ',';
    if (depth_ > 0) line();
    if (!key.empty()) out_ += fmt::format("\"{}\": ", key);
    out_ += text;
    first_ = false;
  }

  std::string out_;
  int depth_ = 0;
  bool first_ = true;
};

void write_rope(Writer& w, const RopeSpec& rope) {
  w.open("rope");
  w.name("kind", rope_kind_name(rope.kind));
  w.number("theta", rope.theta);
  w.number("partial_rotary_factor", rope.partial_rotary_factor);
  w.number("factor", rope.factor);
  w.number("low_freq_factor", rope.low_freq_factor);
  w.number("high_freq_factor", rope.high_freq_factor);
  w.number("original_max_position", rope.original_max_position);
  std::string list;
  for (const float divisor :
       rope.divisors) {  // as doubles: the text of a float could be rounded twice on the way back
    list +=
        fmt::format("{}{}", list.empty() ? "" : ", ", json_number(static_cast<double>(divisor), "divisors"));
  }
  w.raw("divisors", fmt::format("[{}]", list));
  w.close();
}

void write_attention(Writer& w, const AttentionSpec& a) {
  w.open("attention");
  w.number("n_heads", a.n_heads);
  w.number("n_kv_heads", a.n_kv_heads);
  w.number("head_dim", a.head_dim);
  w.number("window", a.window);
  write_rope(w, a.rope);
  w.number("scale", a.scale);
  w.flag("q_norm", a.q_norm);
  w.flag("k_norm", a.k_norm);
  w.flag("v_norm", a.v_norm);
  w.flag("k_eq_v", a.k_eq_v);
  w.number("kv_owner", a.kv_owner);
  w.close();
}

void write_ffn(Writer& w, const FfnSpec& ffn) {
  w.open("ffn");
  w.number("d_ff", ffn.d_ff);
  w.name("activation", activation_name(ffn.activation));
  if (ffn.moe) {
    w.open("moe");
    w.number("n_experts", ffn.moe->n_experts);
    w.number("top_k", ffn.moe->top_k);
    w.number("d_ff", ffn.moe->d_ff);
    w.close();
  } else {
    w.null("moe");
  }
  w.close();
}

void write_layer(Writer& w, const LayerSpec& layer) {
  w.open("");
  layer.attention ? write_attention(w, *layer.attention) : w.null("attention");
  layer.ffn ? write_ffn(w, *layer.ffn) : w.null("ffn");
  w.flag("post_attention_norm", layer.post_attention_norm);
  w.flag("post_ffn_norm", layer.post_ffn_norm);
  w.flag("ple", layer.ple);
  w.flag("layer_scalar", layer.layer_scalar);
  w.name("residual", "add");
  w.close();
}

template <typename Enum, size_t N>
Enum read_enum(JsonFields& fields, std::string_view key, const std::array<Enum, N>& known,
               std::string_view (*name_of)(Enum)) {
  const std::string text = fields.get_string(key);
  std::string names;
  for (const Enum value : known) {
    if (name_of(value) == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(value));
  }
  fail(ErrorCode::unsupported, "{}: expected one of {}, got \"{}\"", fields.path(key), names, text);
}

RopeSpec read_rope(JsonFields f) {
  RopeSpec rope;
  rope.kind = read_enum(f, "kind", kRopeKinds, rope_kind_name);
  rope.theta = f.get_double("theta");
  rope.partial_rotary_factor = f.get_double("partial_rotary_factor");
  rope.factor = f.get_double("factor");
  rope.low_freq_factor = f.get_double("low_freq_factor");
  rope.high_freq_factor = f.get_double("high_freq_factor");
  rope.original_max_position = f.get_int("original_max_position");
  for (const auto& divisor : f.get_array("divisors")) {
    ensure(divisor.is_double(), ErrorCode::data, "{}: expected numbers with a point, got {}",
           f.path("divisors"), describe_json(divisor));
    rope.divisors.push_back(static_cast<float>(divisor.get_double()));
  }
  f.refuse_unknown();
  return rope;
}

AttentionSpec read_attention(JsonFields f) {
  AttentionSpec a;
  a.n_heads = f.get_int("n_heads");
  a.n_kv_heads = f.get_int("n_kv_heads");
  a.head_dim = f.get_int("head_dim");
  a.window = f.get_int("window");
  a.rope = read_rope(f.get_object("rope"));
  a.scale = f.get_double("scale");
  a.q_norm = f.get_bool("q_norm");
  a.k_norm = f.get_bool("k_norm");
  a.v_norm = f.get_bool("v_norm");
  a.k_eq_v = f.get_bool("k_eq_v");
  a.kv_owner = f.get_int("kv_owner");
  f.refuse_unknown();
  return a;
}

FfnSpec read_ffn(JsonFields f) {
  FfnSpec ffn;
  ffn.d_ff = f.get_int("d_ff");
  ffn.activation = read_enum(f, "activation", kActivations, activation_name);
  if (!f.get("moe").is_null()) {
    JsonFields m = f.get_object("moe");
    ffn.moe = MoeSpec{m.get_int("n_experts"), m.get_int("top_k"), m.get_int("d_ff")};
    m.refuse_unknown();
  }
  f.refuse_unknown();
  return ffn;
}

LayerSpec read_layer(JsonFields f) {
  LayerSpec layer;
  if (!f.get("attention").is_null()) layer.attention = read_attention(f.get_object("attention"));
  if (!f.get("ffn").is_null()) layer.ffn = read_ffn(f.get_object("ffn"));
  layer.post_attention_norm = f.get_bool("post_attention_norm");
  layer.post_ffn_norm = f.get_bool("post_ffn_norm");
  layer.ple = f.get_bool("ple");
  layer.layer_scalar = f.get_bool("layer_scalar");
  const std::string residual = f.get_string("residual");
  ensure(residual == "add", ErrorCode::unsupported, "{}: expected add, got \"{}\"", f.path("residual"),
         residual);
  f.refuse_unknown();
  return layer;
}

}  // namespace

std::string spec_to_json(const ModelSpec& spec) {
  Writer w;
  w.open("");
  w.number("spec_version", kVersion);
  w.number("vocab_size", spec.vocab_size);
  w.number("d_model", spec.d_model);
  w.number("max_position", spec.max_position);
  w.number("norm_eps", spec.norm_eps);
  w.number("embed_scale", spec.embed_scale);
  w.number("logit_softcap", spec.logit_softcap);
  w.flag("tied_head", spec.tied_head);
  w.number("ple_dim", spec.ple_dim);
  w.open_list("layers");
  for (const LayerSpec& layer : spec.layers) write_layer(w, layer);
  w.close_list();
  w.close();
  return w.take();
}

ModelSpec spec_from_json(std::string_view json) {
  const boost::json::value root = parse_json(json, "spec");
  JsonFields f(root, "spec");
  const int64_t version = f.get_int("spec_version");
  ensure(version == kVersion, ErrorCode::unsupported, "spec: spec_version: expected {}, got {}", kVersion,
         version);
  ModelSpec spec;
  spec.vocab_size = f.get_int("vocab_size");
  spec.d_model = f.get_int("d_model");
  spec.max_position = f.get_int("max_position");
  spec.norm_eps = f.get_double("norm_eps");
  spec.embed_scale = f.get_double("embed_scale");
  spec.logit_softcap = f.get_double("logit_softcap");
  spec.tied_head = f.get_bool("tied_head");
  spec.ple_dim = f.get_int("ple_dim");
  size_t index = 0;
  for (const auto& layer : f.get_array("layers")) {
    spec.layers.push_back(read_layer({layer, fmt::format("spec: layers[{}]", index++)}));
  }
  f.refuse_unknown();
  spec.validate();
  return spec;
}

}  // namespace lapidary
