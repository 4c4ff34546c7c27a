/* figures.h - FLOPs, bytes and workspace a second time, as README and notes say them. Nothing here asks the code that is tested.
 */
#ifndef FA_FIGURES_H
#define FA_FIGURES_H

#include "../common/device/device.h"
#include "../common/harness/row.h"
#include "../common/host/text.h"
#include "../common/stage.h"

#include <string.h>

/* Multiplications and additions of the products, one by one, of the pairs that causal mask, key lengths and block mask, a window,
 * leave. Of a causal square of which no more is cut off, half of all. */
static inline double flops_of(const Problem *p, const int *lengths, Passes passes) {
    static const int products[] = {[FORWARD_PASS] = 2, [BACKWARD_PASS] = 5, [BOTH] = 7, [WITH_PREPARE] = 2, [PREPARE] = 0};
    const int has_window = p->score && p->score->score.window;
    const int is_half = p->causal && !lengths && !p->blocks && !has_window && p->seqlen_q == p->seqlen_k;
    double sum = 0;
    for (int head = 0; head < p->batch * p->heads; head++)
        for (int row = 0; row < p->seqlen_q; row++)
            for (int key = 0; key < p->seqlen_k; key++) {
                int exist = lengths ? lengths[head / p->heads] : p->seqlen_k;
                int is_seen = key < exist && (!p->causal || key - exist <= row - p->seqlen_q);
                int ago = row + exist - p->seqlen_q - key;
                is_seen &= !p->blocks || (ago >= 0 && ago < p->blocks->mask.window);
                is_seen &= !has_window || (-ago <= p->score->score.right && ago <= p->score->score.left);
                sum += is_half || is_seen ? products[passes] * (p->head_dim + p->head_dim) : 0;
            }
    return is_half ? sum / 2 : sum;
}

static inline double tensor_sizes(const Problem *p, int queries, int keys, int rows) {
    double element = p->dtype == DTYPE_FP32 ? 4 : 2, q = (double)p->batch * p->heads * p->seqlen_q;
    return (queries * q + keys * (double)p->batch * p->kv_heads * p->seqlen_k) * p->head_dim * element + rows * q * 4;
}

/* ---- what a variant takes for itself, by purpose: too much is wrong as well as too little ---- */

typedef struct {
    const char *purpose;
    double bytes;
    int zeroed; /* 1: holds zeros before the first launch */
} Piece;

static inline double whole_tiles(double size, double tile) { return ceil(size / tile) * tile; }

/* notes/07: an 8-bit cache, or one in pages; split_k: a partial result for each piece of a row; equal_shares: one for each block and once more for
 * each head, of the rows that a block takes together, and a ticket a head. The device takes so many blocks at once: the CPU device
 * 5, and a GPU (the problems are small) as many as there are key tiles. */
static inline int decoding_pieces(const char *variant, const Problem *p, Piece *w) {
    enum { SPLITS, SPLIT_SIZE, KV_CACHE, PAGE_SIZE };
    static const int page_sizes[] = {0, 16, 64, 128};
    const int *settings = p->settings;
    const DeviceProperties *device = device_properties();
    double rows = (double)p->heads / p->kv_heads * p->seqlen_q;
    double tile = p->dtype == DTYPE_FP32 ? 4 : rows <= 16 ? 16 : 32;
    double heads = p->batch * p->kv_heads * ceil(rows / tile);
    double element = settings[KV_CACHE] ? 1 : p->dtype == DTYPE_FP32 ? 4 : 2;
    double warps = fmin(8, floor(((double)device->shared_bytes - 4) / (4 * 4096 + whole_tiles(8 * tile, 128))));
    double tile_keys = warps * 4096 / (p->head_dim * element), tiles = fmax(1, ceil(p->seqlen_k / tile_keys));
    double blocks = device->cuda_version[0] ? heads * tiles : 5, keys = (double)p->batch * p->kv_heads * p->seqlen_k;
    int n = 0;
    if (settings[KV_CACHE]) {
        w[n++] = (Piece){"K cache", keys * p->head_dim, 0};
        w[n++] = (Piece){"V cache", keys * p->head_dim, 0};
        w[n++] = (Piece){"scales", 4 * 2.0 * p->batch * p->kv_heads, 0};
        w[n++] = (Piece){"largest of a slice", 4 * 2.0 * p->batch * p->kv_heads * 32, 0};
    }
    if (settings[PAGE_SIZE]) { /* the next power of two above the entries of the table */
        double page = page_sizes[settings[PAGE_SIZE]], entries = p->batch * ceil(p->seqlen_k / page);
        double pool = pow(2, floor(log2(entries)) + 1) * page * p->kv_heads * p->head_dim * (p->dtype == DTYPE_FP32 ? 4 : 2);
        w[n++] = (Piece){"K cache", pool, 0};
        w[n++] = (Piece){"V cache", pool, 0};
        w[n++] = (Piece){"page table", 4 * entries, 0};
    }
    if (strcmp(variant, "07_flash_decoding/one_block") == 0)
        return n;
    int equal_shares = strcmp(variant, "07_flash_decoding/equal_shares") == 0;
    double piece = settings[SPLIT_SIZE]
                       ? ceil(settings[SPLIT_SIZE] / tile_keys)
                       : ceil(tiles / (settings[SPLITS] ? settings[SPLITS] : fmax(1, floor(blocks / heads))));
    double partial_rows = equal_shares ? (fmin(blocks, heads * tiles) + heads) * fmin(rows, tile)
                                       : ceil(tiles / piece) * p->batch * p->heads * p->seqlen_q;
    w[n++] = (Piece){"partial O", 4 * partial_rows * p->head_dim, 0};
    w[n++] = (Piece){"partial LSE", 4 * partial_rows, 0};
    if (equal_shares)
        w[n++] = (Piece){"tickets", 4 * heads, 1};
    return n;
}

/* Whether a stage's workspace is worked out below. Of a new stage it need not be. */
static inline int is_worked_out(const char *stage) {
    static const char *const STAGES[] = {"00_naive", "01_tiled", "02_online_softmax", "03_fa1",          "04_fa2",         "05_fa2_backward",
                                         "06_fp8",   "07_flash_decoding", "08_fa3",   "09_fa3_backward", "10_block_sparse"};
    for (size_t i = 0; i < sizeof STAGES / sizeof *STAGES; i++)
        if (strcmp(STAGES[i], stage) == 0)
            return 1;
    return 0;
}

/* Fills in the workspace of "01_tiled/mma", "00_naive", "05_fa2_backward/00_naive"; returns how many pieces: none for
 * those that are not named here. */
static inline int workspace_pieces(const char *variant, const Problem *p, Piece *w) {
    double element = p->dtype == DTYPE_FP32 ? 4 : 2, D = p->head_dim;
    double rows = (double)p->batch * p->heads * p->seqlen_q, scores = rows * p->seqlen_k;
    double keys = (double)p->batch * p->kv_heads * p->seqlen_k;
    int n = 0;
    if (strcmp(variant, "00_naive") == 0) { /* S in fp32, P as the inputs */
        w[n++] = (Piece){"S", scores * 4, 0};
        w[n++] = (Piece){"P", scores * element, 0};
    } else if (strncmp(variant, "01_tiled/", 9) == 0) { /* the same, rows padded to whole tiles */
        double padded = rows * whole_tiles(p->seqlen_k, 64);
        w[n++] = (Piece){"S", padded * 4, 0};
        w[n++] = (Piece){"P", padded * element, 0};
    } else if (strncmp(variant, "03_fa1/", 7) == 0 || strcmp(variant, "04_fa2/epilogue") == 0 ||
               strcmp(variant, "04_fa2/parallel") == 0) { /* between two key tiles */
        w[n++] = (Piece){"O accumulator", rows * D * 4, 0};
        w[n++] = (Piece){"l", rows * 4, 0};
        w[n++] = (Piece){"m", rows * 4, 0};
    } else if (strcmp(variant, "05_fa2_backward/00_naive") == 0) {
        w[n++] = (Piece){"P", scores * element, 0};
        w[n++] = (Piece){"dP and dS", scores * 4, 0};
        w[n++] = (Piece){"delta", rows * 4, 0};
    } else if (strcmp(variant, "05_fa2_backward/fma") == 0 || strcmp(variant, "11_score_mod_backward/fma") == 0) {
        w[n++] = (Piece){"delta", rows * 4, 0};
        w[n++] = (Piece){"dQ accumulator", rows * D * 4, 0};
    } else if (strncmp(variant, "05_fa2_backward/", 16) == 0) { /* two numbers per query; dQ in fp32 */
        double padded = (double)p->batch * p->heads * whole_tiles(p->seqlen_q, 128);
        w[n++] = (Piece){"LSE in base 2", padded * 4, 0};
        w[n++] = (Piece){"delta", padded * 4, 0};
        if (strcmp(variant, "05_fa2_backward/atomic") == 0) {
            double padded_keys = (double)p->batch * p->kv_heads * whole_tiles(p->seqlen_k, 128);
            w[n++] = (Piece){"dQ accumulator", padded * D * 4, 0};
            if (p->heads > p->kv_heads) { /* to which the blocks of several query heads add */
                w[n++] = (Piece){"dK accumulator", padded_keys * D * 4, 1};
                w[n++] = (Piece){"dV accumulator", padded_keys * D * 4, 1};
            }
        }
    } else if (strcmp(variant, "09_fa3_backward/00_naive") == 0 || strcmp(variant, "11_score_mod_backward/00_naive") == 0) {
        n = workspace_pieces("05_fa2_backward/00_naive", p, w);
        if (p->score)
            w[n++] = (Piece){"f'(S)", scores * 4, 0};
    } else if (strncmp(variant, "09_fa3_backward/", 16) == 0) {
        n = workspace_pieces("05_fa2_backward/atomic", p, w);
        int is_ordered = strcmp(variant, "09_fa3_backward/ordered") == 0;
        if (is_ordered || strcmp(variant, "09_fa3_backward/overlapped") == 0)
            w[n++] = (Piece){"next key tile", 4, 1};
        double key_tiles = p->heads > p->kv_heads ? p->batch * p->kv_heads * ceil(p->seqlen_k / 128.0) : 0;
        if (is_ordered) /* of 128 or 64 rows, and of shared keys: how far the adding has come, for each of two consumers */
            w[n++] = (Piece){"turns", w[1].bytes / (D == 64 ? 128 : 64) * 2 + key_tiles * 4 * 2, 1};
    } else if (strncmp(variant, "06_fp8/", 7) == 0) { /* the inputs once more, a scale for 64 queries or 128 keys */
        double k_heads = p->batch * p->kv_heads;
        double query_blocks = (double)p->batch * p->heads * ceil(p->seqlen_q / 64.0),
               key_blocks = k_heads * ceil(p->seqlen_k / 128.0);
        w[n++] = (Piece){"Q8", rows * D, 0};
        w[n++] = (Piece){"K8", keys * D, 0};
        w[n++] = (Piece){"VT8", key_blocks * 128 * D, 0};
        w[n++] = (Piece){"Q scales", query_blocks * 4, 0};
        w[n++] = (Piece){"K scales", key_blocks * 4, 0};
        w[n++] = (Piece){"V scales", key_blocks * 4, 0};
        w[n++] = (Piece){"LSE shift", rows * 4, 0};
        w[n++] = (Piece){"K mean", k_heads * D * 4, 0};
        w[n++] = (Piece){"progress", 4 * (1 + p->batch * p->heads * ceil(p->seqlen_q / 128.0) + 2 * key_blocks), 0};
        if (strcmp(variant, "06_fp8/overlapped") == 0)
            w[n++] = (Piece){"next query tile", 4, 1};
    } else if (strncmp(variant, "07_flash_decoding/", 18) == 0) {
        n = decoding_pieces(variant, p, w);
    } else if (strcmp(variant, "08_fa3/overlapped") == 0) { /* a counter that blocks draw their tiles from */
        w[n++] = (Piece){"next query tile", 4, 1};
    } else if (strncmp(variant, "10_block_sparse/", 16) == 0 && !strstr(variant, "masked")) {
        double query_blocks = p->batch * ceil(p->seqlen_q / 128.0), key_blocks = ceil(p->seqlen_k / 128.0);
        w[n++] = (Piece){"key blocks", query_blocks * key_blocks * 4, 0};
        w[n++] = (Piece){"list lengths", query_blocks * 2 * 4, 0};
        w[n++] = (Piece){"longest first", query_blocks * 3 * 4, 0};
        if (strstr(variant, "overlapped"))
            w[n++] = (Piece){"next query tile", 4, 1};
    }
    return n;
}

#endif
