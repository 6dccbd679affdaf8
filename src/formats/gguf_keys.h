// Metadata keys of GGUF files, said once for the importer and the writer. Those of one architecture stand
// behind its name: "gemma4.attention.head_count".
#pragma once

#include <string_view>

namespace lapidary::gguf_key {

inline constexpr std::string_view block_count = "block_count";
inline constexpr std::string_view context_length = "context_length";
inline constexpr std::string_view embedding_length = "embedding_length";
inline constexpr std::string_view feed_forward_length = "feed_forward_length";
inline constexpr std::string_view vocab_size = "vocab_size";
inline constexpr std::string_view attention_head_count = "attention.head_count";
inline constexpr std::string_view attention_head_count_kv = "attention.head_count_kv";
inline constexpr std::string_view attention_key_length = "attention.key_length";
inline constexpr std::string_view attention_value_length = "attention.value_length";
inline constexpr std::string_view attention_layer_norm_rms_epsilon = "attention.layer_norm_rms_epsilon";
inline constexpr std::string_view attention_sliding_window = "attention.sliding_window";
inline constexpr std::string_view attention_sliding_window_pattern = "attention.sliding_window_pattern";
inline constexpr std::string_view attention_shared_kv_layers = "attention.shared_kv_layers";
inline constexpr std::string_view rope_freq_base = "rope.freq_base";
inline constexpr std::string_view rope_freq_base_swa = "rope.freq_base_swa";
inline constexpr std::string_view rope_dimension_count = "rope.dimension_count";
inline constexpr std::string_view final_logit_softcapping = "final_logit_softcapping";
inline constexpr std::string_view expert_count = "expert_count";
inline constexpr std::string_view expert_used_count = "expert_used_count";
inline constexpr std::string_view expert_feed_forward_length = "expert_feed_forward_length";
inline constexpr std::string_view embedding_length_per_layer_input = "embedding_length_per_layer_input";
// Appended to key_length, value_length, dimension_count and freq_base: of sliding layers.
inline constexpr std::string_view sliding_suffix = "_swa";

inline constexpr std::string_view architecture = "general.architecture";
inline constexpr std::string_view file_type = "general.file_type";
inline constexpr std::string_view alignment = "general.alignment";  // of tensors in the file
inline constexpr std::string_view quantization_version = "general.quantization_version";
inline constexpr std::string_view tokenizer_prefix = "tokenizer.";
inline constexpr std::string_view chat_template = "tokenizer.chat_template";
inline constexpr std::string_view tokens = "tokenizer.ggml.tokens";
inline constexpr std::string_view token_types = "tokenizer.ggml.token_type";
inline constexpr std::string_view scores = "tokenizer.ggml.scores";
inline constexpr std::string_view merges = "tokenizer.ggml.merges";
inline constexpr std::string_view tokenizer_model = "tokenizer.ggml.model";
inline constexpr std::string_view tokenizer_pre = "tokenizer.ggml.pre";
inline constexpr std::string_view bos_token_id = "tokenizer.ggml.bos_token_id";
inline constexpr std::string_view eos_token_id = "tokenizer.ggml.eos_token_id";
inline constexpr std::string_view eot_token_id = "tokenizer.ggml.eot_token_id";
inline constexpr std::string_view unknown_token_id = "tokenizer.ggml.unknown_token_id";
inline constexpr std::string_view padding_token_id = "tokenizer.ggml.padding_token_id";
inline constexpr std::string_view add_bos_token = "tokenizer.ggml.add_bos_token";
inline constexpr std::string_view add_space_prefix = "tokenizer.ggml.add_space_prefix";

// A tensor that is part of the spec here: divisors of the rotary frequencies, [Hd/2].
inline constexpr std::string_view rope_freqs = "rope_freqs.weight";

}  // namespace lapidary::gguf_key
