// Files and fields of a Hugging Face model folder that the importer reads and the writer writes, said once
// for both.
#pragma once

#include <string_view>

namespace lapidary::hf_key {

inline constexpr std::string_view attention_k_eq_v = "attention_k_eq_v";
inline constexpr std::string_view bos_token_id = "bos_token_id";
inline constexpr std::string_view enable_moe_block = "enable_moe_block";
inline constexpr std::string_view eos_token_id = "eos_token_id";
inline constexpr std::string_view final_logit_softcapping = "final_logit_softcapping";
inline constexpr std::string_view global_head_dim = "global_head_dim";
inline constexpr std::string_view head_dim = "head_dim";
inline constexpr std::string_view hidden_act = "hidden_act";
inline constexpr std::string_view hidden_activation = "hidden_activation";
inline constexpr std::string_view hidden_size = "hidden_size";
inline constexpr std::string_view hidden_size_per_layer_input = "hidden_size_per_layer_input";
inline constexpr std::string_view intermediate_size = "intermediate_size";
inline constexpr std::string_view layer_types = "layer_types";
inline constexpr std::string_view max_position_embeddings = "max_position_embeddings";
inline constexpr std::string_view model_type = "model_type";
inline constexpr std::string_view moe_intermediate_size = "moe_intermediate_size";
inline constexpr std::string_view num_attention_heads = "num_attention_heads";
inline constexpr std::string_view num_experts = "num_experts";
inline constexpr std::string_view num_global_key_value_heads = "num_global_key_value_heads";
inline constexpr std::string_view num_hidden_layers = "num_hidden_layers";
inline constexpr std::string_view num_key_value_heads = "num_key_value_heads";
inline constexpr std::string_view num_kv_shared_layers = "num_kv_shared_layers";
inline constexpr std::string_view pad_token_id = "pad_token_id";
inline constexpr std::string_view per_layer_config = "per_layer_config";
inline constexpr std::string_view query_pre_attn_scalar = "query_pre_attn_scalar";
inline constexpr std::string_view rms_norm_eps = "rms_norm_eps";
inline constexpr std::string_view rope_parameters = "rope_parameters";
inline constexpr std::string_view sliding_window = "sliding_window";
inline constexpr std::string_view tie_word_embeddings = "tie_word_embeddings";
inline constexpr std::string_view top_k_experts = "top_k_experts";
inline constexpr std::string_view use_double_wide_mlp = "use_double_wide_mlp";
inline constexpr std::string_view vocab_size = "vocab_size";
inline constexpr std::string_view vocab_size_per_layer_input = "vocab_size_per_layer_input";
inline constexpr std::string_view full_attention = "full_attention";
inline constexpr std::string_view sliding_attention = "sliding_attention";
inline constexpr std::string_view rope_theta = "rope_theta";
inline constexpr std::string_view rope_type = "rope_type";
inline constexpr std::string_view partial_rotary_factor = "partial_rotary_factor";
inline constexpr std::string_view factor = "factor";
inline constexpr std::string_view low_freq_factor = "low_freq_factor";
inline constexpr std::string_view high_freq_factor = "high_freq_factor";
inline constexpr std::string_view original_max_position_embeddings = "original_max_position_embeddings";

// Values of rope_type.
inline constexpr std::string_view rope_default = "default";
inline constexpr std::string_view rope_proportional = "proportional";
inline constexpr std::string_view rope_llama3 = "llama3";
// Values of hidden_act and hidden_activation.
inline constexpr std::string_view gelu_tanh = "gelu_pytorch_tanh";
inline constexpr std::string_view silu = "silu";

// Files of a model folder.
inline constexpr std::string_view config_file = "config.json";
inline constexpr std::string_view weights_file = "model.safetensors";
inline constexpr std::string_view index_file = "model.safetensors.index.json";
inline constexpr std::string_view generation_file = "generation_config.json";
inline constexpr std::string_view tokenizer_file = "tokenizer.json";
inline constexpr std::string_view tokenizer_config_file = "tokenizer_config.json";
inline constexpr std::string_view template_file = "chat_template.jinja";

}  // namespace lapidary::hf_key
