// SPDX-License-Identifier: Apache-2.0
// The rules of the fused operators that the emulated device enforces, each with where it comes
// from. A row is a fact about the hardware's operator; the code that checks it names the row.
//
// Sources: [v2] op-plugin docs, torch_npu-npu_fused_infer_attention_score_v2; [kv] op-plugin docs,
// torch_npu-npu_scatter_pa_kv_cache; [kv-kernel] the scatter_pa_kv_cache kernels of CANN's
// ops-transformer; [design] the project's design page on the emulated device; [gate], [route],
// [group], [sum] torch_npu's documentation of npu_moe_gating_top_k_softmax,
// npu_moe_init_routing_v2, npu_grouped_matmul and npu_moe_token_unpermute.
//
// Known and not enforced, on purpose: float32 query, key and value are accepted (the hardware takes
// float16 and bfloat16), since float32 is what makes token-exact tests possible; head sizes other
// than 64, 128 and 192 are accepted in TND, since test models are small; the number of blocks may
// be below the sum over the batch, since sequences that share a prefix share blocks.
#pragma once

#include "ops/operator.h"

namespace emu::ops {

struct Rule {
  const char* text;
  const char* source;
};

namespace rule {
inline constexpr Rule kQueryLengthsGiven{"TND needs actual_seq_qlen and actual_seq_kvlen", "v2"};
inline constexpr Rule kBatchLimit{"TND takes at most 4096 sequences", "v2"};
inline constexpr Rule kQueryLengthsAscend{
    "in TND actual_seq_qlen is cumulative: no value negative or below the one before it", "v2"};
inline constexpr Rule kQueryLengthsEnd{
    "in TND the last value of actual_seq_qlen is T, the first dimension of query", "design"};
inline constexpr Rule kKvLengthsCount{
    "actual_seq_kvlen has one value for each sequence of the batch", "v2"};
inline constexpr Rule kKvLengthsAscend{
    "in TND without a block table actual_seq_kvlen is cumulative: no value below the one before "
    "it, "
    "the last at most the first dimension of key",
    "v2"};
inline constexpr Rule kKvLengthRange{
    "a value of actual_seq_kvlen is not negative and at most what the cache of its sequence holds",
    "v2"};
inline constexpr Rule kLengthsCount{
    "a list of lengths has one value for all sequences, or one for each", "v2"};
inline constexpr Rule kQueryLengthRange{
    "a value of actual_seq_qlen is not negative and at most the S of query", "v2"};
inline constexpr Rule kBlockSize{
    "block_size is a multiple of 16 (32 for int8) and at most 1024, and is the cache's", "v2"};
inline constexpr Rule kBlockTableShape{
    "block_table is int32 [batch, n] with n not below the blocks of the longest sequence", "v2"};
inline constexpr Rule kBlockTableRange{
    "each entry of block_table that is read is a block of the cache", "v2"};
inline constexpr Rule kCacheLayout{
    "a paged cache is [blocks, block_size, kv_heads * D], or with TND and BNSD also [blocks, "
    "kv_heads, block_size, D]",
    "v2"};
inline constexpr Rule kCacheRowLimit{
    "kv_heads * D of a cache [blocks, block_size, kv_heads * D] is at most 65535", "v2"};
inline constexpr Rule kContiguous{
    "query, key, value, atten_mask and block_table are contiguous (a cache may not be a strided "
    "view)",
    "v2"};
inline constexpr Rule kSameDtype{"query, key, value and the output have one dtype", "v2"};
inline constexpr Rule kDtype{
    "query, key and value are float16 or bfloat16 (float32 is the emulated "
    "device's own extension)",
    "v2"};
inline constexpr Rule kHeads{
    "num_query_heads is a multiple of num_key_value_heads, and both are those of the tensors",
    "v2"};
inline constexpr Rule kHeadSize{"query and key have one head size, and it is at most 512", "v2"};
inline constexpr Rule kCompressedMask{
    "sparse_mode 2, 3 and 4 need atten_mask of shape [2048, 2048] (or with leading ones), upper "
    "triangular: one above the diagonal",
    "v2"};
inline constexpr Rule kFullMask{
    "sparse_mode 1 needs, and 0 may have, an atten_mask that covers [S of query, S of key]", "v2"};
inline constexpr Rule kMaskDtype{"atten_mask is bool, int8 or uint8", "v2"};
inline constexpr Rule kOutputShape{"the outputs have the shapes of the layout", "v2"};

inline constexpr Rule kKvSameDtype{"key, value and both caches have one dtype", "kv"};
inline constexpr Rule kKvContiguous{"every tensor is contiguous", "kv"};
inline constexpr Rule kKvShapes{
    "key is [tokens, kv_heads, D], and the caches are [blocks, block_size, kv_heads, D] (Norm) or "
    "[blocks, kv_heads * D / n, block_size, n] (PA_NZ)",
    "kv"};
inline constexpr Rule kSlotDtype{"slot_mapping is int32 or int64 with one value for each token",
                                 "kv"};
inline constexpr Rule kSlotRange{
    "a slot is below blocks * block_size (a negative one is skipped by the kernel)",
    "kv, kv-kernel"};
inline constexpr Rule kSlotUnique{"no slot occurs twice", "kv"};

inline constexpr Rule kGatingShape{
    "x is 2D or 3D, finished has its shape without the last dimension, and the outputs have k "
    "there",
    "gate"};
inline constexpr Rule kGatingTopK{"k is above 0 and at most the number of experts and 1024",
                                  "gate"};
inline constexpr Rule kRoutingMode{"drop_pad_mode is 0, and row_idx_type 0 or 1", "route"};
inline constexpr Rule kRoutingShapes{
    "x is [rows, H], expert_idx [rows, K], expanded_x [rows * K, H], expanded_row_idx [rows * K], "
    "and there is a count for each expert of active_expert_range",
    "route"};
inline constexpr Rule kExpertRange{
    "an expert is below expert_num (at most 10240), and so is active_expert_range, [first, end)",
    "route"};
inline constexpr Rule kGroupedShapes{"x is [M, K], weight [groups, K, N] and y [M, N]", "group"};
inline constexpr Rule kGroupedInner{"the last dimension of each factor is below 65536", "group"};
inline constexpr Rule kGroupList{
    "group_list has one value for each group, cumulative (type 0) or counts of at least two groups "
    "(type 1), none negative, and not more rows in all than x has",
    "group"};
inline constexpr Rule kUnpermuteShapes{
    "permuted_tokens is [rows, H], sorted_indices [tokens * K], probs [tokens, K] and the output "
    "[tokens, H]",
    "sum"};
inline constexpr Rule kUnpermuteRange{"an entry of sorted_indices is a row of permuted_tokens",
                                      "sum"};
}  // namespace rule

template <class... Parts>
void enforce(const Rule& rule, bool holds, const Parts&... values) {
  if (!holds) [[unlikely]] {
    std::ostringstream text;
    text << rule.text << " [" << rule.source << "]; got ";
    (text << ... << values);
    throw RuleError(text.str());
  }
}

}  // namespace emu::ops
