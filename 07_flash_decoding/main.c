/* 07_flash_decoding - one query, a long context: the keys split over the whole chip. */
#include "decode.h"

extern Launcher decode_one_block, decode_split_k, decode_equal_shares;
extern Planner decode_split_k_plan, decode_equal_shares_plan;
extern Predictor cache_fill_traffic, decode_one_block_traffic, decode_split_k_traffic, decode_equal_shares_traffic;

static const char *split_k_refuses(const Problem *p) {
    const Work work = work_of(p);
    return p->settings[SPLITS] && p->settings[SPLIT_SIZE] ? "takes --splits or --split-size, not both"
           : p->settings[KV_CACHE] && p->dtype == DTYPE_FP32
               ? "has an 8-bit cache for fp16 and bf16 only: with fp32 choose --kv-cache same"
           : p->settings[KV_CACHE] && p->settings[PAGE_SIZE]
               ? "has no 8-bit pages: with --page-size choose --kv-cache same"
           : (double)work.heads * work.tiles > MOST_TILES ? "counts key tiles in 30 bits, and these are more"
                                                          : NULL;
}
static const char *others_refuse(const Problem *p) {
    return p->settings[SPLITS] || p->settings[SPLIT_SIZE] ? "takes neither --splits nor --split-size: only split_k does"
                                                          : split_k_refuses(p);
}

/* Every variant reads either cache. */
#define TAKES .dtypes = FP16 | BF16 | FP32, .head_dims = {64, 128}, .uses = TENSOR_CORES, .max_seqlen_q = 16, \
              .preparation = &fills_cache
static const Preparation fills_cache = {.name = "fill cache", .wanted = cache_wanted, .launch = cache_fill,
                                        .predict = cache_fill_traffic, .values = cache_prepared_values,
                                         .changes = cache_is_8_bit, .key_bytes = 1};

const Stage stage = {
    .name = "07_flash_decoding",
    .idea = "split-K: one query, a long context, every SM busy",
    .kind = DECODING,
    .settings = {
        [SPLITS] = {.name = "splits", .choices = "auto", .max = 1024,
                    .help = "split_k: number of splits of each head's keys; auto: just enough to fill the chip"},
        [SPLIT_SIZE] = {.name = "split-size", .choices = "none", .max = 1 << 20,
                        .help = "split_k: keys per split, rounded up to the key tile: results then do not "
                                 "depend on the batch"},
        [KV_CACHE] = {.name = "kv-cache", .choices = "same|e4m3",
                      .help = "K and V as given, or in 8 bits with a scale per head"},
        [PAGE_SIZE] = {.name = "page-size", .choices = "none|16|64|128",
                        .help = "keys per page, where pages may be anywhere in a pool and are found through a table"},
    },
    .defaults = {{.batch = 1, .heads = 32, .kv_heads = 8, .seqlen_q = 1, .seqlen_k = 65536, .head_dim = 128},
                 {.batch = 1, .heads = 8, .kv_heads = 2, .seqlen_q = 1, .seqlen_k = 2048, .head_dim = 64}},
    .variants = {
        {.name = "one_block", .idea = "one block per head walks over its keys, as in FlashAttention-2", TAKES,
         .launch = decode_one_block, .plan = cache_plan, .predict = decode_one_block_traffic, .refuses = others_refuse},
        {.name = "split_k", .idea = "a head's keys in splits, a block each; a second kernel merges them by LSE", TAKES,
         .launch = decode_split_k, .plan = decode_split_k_plan, .predict = decode_split_k_traffic,
         .refuses = split_k_refuses},
        {.name = "equal_shares",
         .idea = "all keys in equal shares for the blocks on the chip, merged in the same launch",
         TAKES, .launch = decode_equal_shares, .plan = decode_equal_shares_plan,
         .predict = decode_equal_shares_traffic, .refuses = others_refuse},
    },
};

int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
