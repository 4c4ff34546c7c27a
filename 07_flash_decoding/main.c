/* 07_flash_decoding - one query, a long context: the keys split over the whole chip. */
#include "cache.h"
#include "decode.h"

extern Launcher decode_one_block, decode_split_k;
extern Planner decode_split_k_plan;
extern Predictor decode_one_block_traffic, decode_split_k_traffic;
extern ByteCount decode_bytes;
extern Refusal decode_one_block_refuses, decode_split_k_refuses;

const Stage stage = {
    .name = "07_flash_decoding",
    .idea = "split-K: one query, a long context, every SM busy",
    .settings = {
        [SPLITS] = {.name = "splits", .choices = "auto", .max = 1024,
                    .help = "pieces each head's keys are cut into; auto: all keys of all heads over all resident blocks"},
        [SPLIT_SIZE] = {.name = "split-size", .choices = "none", .max = 1 << 20,
                        .help = "keys a piece, rounded up to the key tile: results then do not depend on the batch"},
        [KV_CACHE] = {.name = "kv-cache", .choices = "same|e4m3", .help = "K and V as given, or in 8 bits with a scale a head"},
    },
    .defaults = {{.batch = 1, .heads = 32, .kv_heads = 8, .seqlen_q = 1, .seqlen_k = 65536, .head_dim = 128},
                 {.batch = 1, .heads = 8, .kv_heads = 2, .seqlen_q = 1, .seqlen_k = 2048, .head_dim = 64}},
    .bytes = decode_bytes,
    .variants = {
        {.name = "one_block", .idea = "one block a head walks over its keys, as in FlashAttention-2", .launch = decode_one_block,
         .predict = decode_one_block_traffic, .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}, .min_bf16_capability = 80,
         .max_seqlen_q = 16, .refuses = decode_one_block_refuses},
        {.name = "split_k", .idea = "keys split over the blocks, partial results merged by LSE in the same launch",
         .launch = decode_split_k, .plan = decode_split_k_plan, .predict = decode_split_k_traffic,
         .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}, .min_bf16_capability = 80, .max_seqlen_q = 16,
         .refuses = decode_split_k_refuses, .prepare_name = "fill cache", .prepares = cache_wanted, .prepare = cache_fill,
         .prepared_values = cache_prepared_values},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
