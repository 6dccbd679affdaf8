#include "formats/export_gguf.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "formats/gguf_keys.h"
#include "formats/import_gguf.h"
#include "formats/rope_forms.h"
#include "formats/spec_difference.h"
#include "spec/tensor_table.h"

namespace lapidary {
namespace {

constexpr std::string_view kWhere = "GGUF";

class Exporter {
 public:
  Exporter(const ModelSpec& spec, const std::string& family) : spec_(spec), family_(family) {}

  GgufSpec run() {
    for (int64_t i = 0; i < spec_.n_layers(); ++i) {
      const LayerSpec& layer = spec_.layers[static_cast<size_t>(i)];
      ensure(layer.attention.has_value(), ErrorCode::unsupported,
             "{}: layers[{}].attention: expected every layer to have one, got none", kWhere, i);
      ensure(layer.ffn.has_value(), ErrorCode::unsupported,
             "{}: layers[{}].ffn: expected every layer to have one, got none", kWhere, i);
    }
    out_.metadata.put_text(gguf_key::architecture, family_);
    write_common();
    if (family_ == "gemma4") {
      write_gemma4();
    } else if (family_ == "gemma3") {
      write_gemma3();
    } else {
      write_llama();
    }
    return std::move(out_);
  }

 private:
  using PerLayer = std::function<int64_t(const LayerSpec&)>;

  void put(std::string_view key, GgufValue value) {
    out_.metadata.put(fmt::format("{}.{}", family_, key), std::move(value));
  }
  void integer(std::string_view key, int64_t value) { put(key, {value}); }
  void number(std::string_view key, double value) { put(key, {value}); }

  // One number where all layers agree, else an array.
  void per_layer(std::string_view key, const PerLayer& of) {
    std::vector<int64_t> values;
    for (const LayerSpec& layer : spec_.layers) values.push_back(of(layer));
    const bool same = std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
    if (same) {
      integer(key, values.front());
    } else {
      put(key, {std::move(values)});
    }
  }

  // The first layer of a kind; the first of all when there is none, so that keys which must be there say
  // something harmless.
  const AttentionSpec& example(bool full) const {
    for (const LayerSpec& layer : spec_.layers) {
      if ((layer.attention->window == 0) == full) return *layer.attention;
    }
    return *spec_.layers.front().attention;
  }

  void write_common() {
    integer(gguf_key::block_count, spec_.n_layers());
    integer(gguf_key::context_length, spec_.max_position);
    integer(gguf_key::embedding_length, spec_.d_model);
    integer(gguf_key::vocab_size, spec_.vocab_size);
    number(gguf_key::attention_layer_norm_rms_epsilon, spec_.norm_eps);
    per_layer(gguf_key::attention_head_count, [](const LayerSpec& l) { return l.attention->n_heads; });
    per_layer(gguf_key::attention_head_count_kv, [](const LayerSpec& l) { return l.attention->n_kv_heads; });
    per_layer(gguf_key::feed_forward_length, [](const LayerSpec& l) { return l.ffn->d_ff; });
  }

  void head_dim(std::string_view suffix, int64_t value) {
    for (const std::string_view key :
         {gguf_key::attention_key_length, gguf_key::attention_value_length, gguf_key::rope_dimension_count}) {
      integer(fmt::format("{}{}", key, suffix), value);
    }
  }

  void write_llama() {
    const AttentionSpec& a = example(true);
    head_dim("", a.head_dim);
    number(gguf_key::rope_freq_base, a.rope.theta);
    if (a.rope.kind != RopeKind::plain) out_.rope_divisors = rope_divisors(a.rope, a.head_dim);
  }

  void write_softcap() {
    if (spec_.logit_softcap != 0) number(gguf_key::final_logit_softcapping, spec_.logit_softcap);
  }

  void write_window() {
    const AttentionSpec& sliding = example(false);
    integer(gguf_key::attention_sliding_window, sliding.window == 0 ? spec_.max_position : sliding.window);
  }

  std::vector<bool> sliding_layers() const {
    std::vector<bool> out;
    for (const LayerSpec& layer : spec_.layers) out.push_back(layer.attention->window != 0);
    return out;
  }

  void write_gemma3() {
    head_dim("", example(true).head_dim);
    number(gguf_key::rope_freq_base, example(true).rope.theta);
    number(gguf_key::rope_freq_base_swa, example(false).rope.theta);
    write_window();
    write_softcap();
  }

  void write_gemma4() {
    head_dim("", example(true).head_dim);
    head_dim(gguf_key::sliding_suffix, example(false).head_dim);
    number(gguf_key::rope_freq_base, example(true).rope.theta);
    number(gguf_key::rope_freq_base_swa, example(false).rope.theta);
    write_window();
    write_softcap();
    put(gguf_key::attention_sliding_window_pattern, {sliding_layers()});
    integer(gguf_key::attention_shared_kv_layers, spec_.n_layers() - first_borrower());
    integer(gguf_key::embedding_length_per_layer_input, spec_.ple_dim);
    out_.rope_divisors = rope_divisors(example(true).rope, example(true).head_dim);
    note_donors();
    const auto& moe = spec_.layers.front().ffn->moe;
    if (!moe) return;
    integer(gguf_key::expert_count, moe->n_experts);
    integer(gguf_key::expert_used_count, moe->top_k);
    per_layer(gguf_key::expert_feed_forward_length,
              [](const LayerSpec& l) { return l.ffn->moe ? l.ffn->moe->d_ff : 0; });
  }

  int64_t first_borrower() const {
    for (int64_t i = 0; i < spec_.n_layers(); ++i) {
      if (!spec_.layers[static_cast<size_t>(i)].owns_kv(i)) return i;
    }
    return spec_.n_layers();
  }

  // llama.cpp takes the last owner for global borrowers and the one before it for sliding ones, whatever
  // these are.
  void note_donors() {
    const int64_t owners = first_borrower();
    for (int64_t i = owners; i < spec_.n_layers(); ++i) {
      const AttentionSpec& a = *spec_.layers[static_cast<size_t>(i)].attention;
      const int64_t theirs = a.window == 0 ? owners - 1 : owners - 2;
      if (a.kv_owner == theirs) continue;
      out_.notes.push_back(fmt::format(
          "layer {} borrows KV from layer {}; llama.cpp will take layer {} and compute something else", i,
          a.kv_owner, theirs));
      return;
    }
  }

  const ModelSpec& spec_;
  const std::string& family_;
  GgufSpec out_;
};

// The spec as far as GGUF words it: rotations of global layers as divisors.
ModelSpec as_gguf_words_it(ModelSpec spec, const std::string& family) {
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& a = *layer.attention;
    const bool divided =
        family == "gemma4" ? a.window == 0 : family == "llama" && a.rope.kind != RopeKind::plain;
    if (!divided) continue;
    RopeSpec rope;
    rope.kind = RopeKind::divisors;
    rope.theta = a.rope.theta;
    rope.divisors = rope_divisors(a.rope, a.head_dim);
    a.rope = std::move(rope);
  }
  return spec;
}

void read_back(const ModelSpec& spec, const std::string& family, const GgufSpec& written) {
  GgufFile file;
  file.name = kWhere;
  file.version = 3;
  file.metadata = written.metadata.values();
  for_each_tensor(spec, [&](const TensorInfo& info) {
    file.tensors.emplace(gguf_name(info.slot), TensorView{DType::f32, info.shape, {}});
  });
  if (!written.rope_divisors.empty()) {
    const auto bytes = std::as_bytes(std::span(written.rope_divisors));
    file.tensors.emplace(gguf_key::rope_freqs,
                         TensorView{DType::f32, {static_cast<int64_t>(written.rope_divisors.size())}, bytes});
  }
  const ModelSpec got = import_gguf_spec(file).spec;
  if (const auto difference = first_difference(as_gguf_words_it(spec, family), got, true)) {
    fail(
        ErrorCode::unsupported,
        "a GGUF file of the architecture {} cannot say what this model is: {} is {}, and would be read as {}",
        family, difference->field, difference->wanted, difference->got);
  }
}

}  // namespace

GgufSpec export_gguf_spec(const ModelSpec& spec, const std::string& family) {
  GgufSpec out = Exporter(spec, family).run();
  read_back(spec, family, out);
  return out;
}

}  // namespace lapidary
