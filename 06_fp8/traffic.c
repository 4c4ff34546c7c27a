/* traffic.c - the bytes that 06_fp8's kernels move. */
#include "../common/device/device.h"
#include "../common/traffic.h"
#include "fp8.h"

/* Key tiles that hold a key, and keys that exist, summed over the key heads. */
static double k_heads(const Problem *p) { return (double)p->batch * p->kv_heads; }
static double used_tiles(const Problem *p, const int *key_lengths) {
    double sum = 0;
    for (int b = 0; b < p->batch; b++)
        sum += (double)p->kv_heads * ((key_length(p, key_lengths, b) + BLOCK_K - 1) / BLOCK_K);
    return sum;
}
static double stored_keys(const Problem *p, const int *key_lengths) {
    double sum = 0;
    for (int b = 0; b < p->batch; b++)
        sum += (double)p->kv_heads * key_length(p, key_lengths, b);
    return sum;
}

/* The pre-pass. With --scaling tensor Q, K and V are read twice. Each item is drawn, and each block draws
 * once in vain; that and leaving a tile's maximum are atomics, which count as read and written. Waiting
 * for a maximum is not counted. */
int fp8_quantise_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const double D = p->head_dim, q_in_head = ceil(p->seqlen_q / 128.0), k_in_head = ceil(p->seqlen_k / 128.0);
    const double q_scales = (double)q_scale_offset(p, p->batch, 0), k_scales = (double)k_scale_offset(p, p->batch, 0);
    const double q_bytes = query_bytes(p), keys = stored_keys(p, key_lengths),
                 k_bytes = keys * D * (double)dtype_bytes(p->dtype);
    const double q_tiles = p->batch * p->heads * q_in_head, tiles = q_tiles + 2 * k_heads(p) * k_in_head;
    const int by_head = p->settings[SCALING] == SCALING_TENSOR, times = 1 + by_head;
    const int is_plain = !p->settings[SMOOTH_K] && !p->settings[HADAMARD];
    const int blocks =
        (is_plain ? p->head_dim == 64 ? 6 : 4 : p->head_dim == 64 ? 4 : 3) * device_properties()->sm_count;
    const double items = by_head ? 2 * (tiles + fmax(q_in_head, k_in_head) + blocks / 2) : tiles;
    const double atomics = items + blocks + (by_head ? tiles : 0);
    int i = 0;
    if (p->settings[SMOOTH_K]) {
        const double sums = 4 * D * used_tiles(p, key_lengths);
        traffic[i++] = (Traffic){"key_sums", "K", k_bytes, 0};
        traffic[i++] = (Traffic){"key_sums", "VT8", 0, sums};
        traffic[i++] = (Traffic){"key_mean", "VT8", sums, 0};
        traffic[i++] = (Traffic){"key_mean", "K mean", 0, 4 * D * k_heads(p)};
        /* with each key for its maximum and its rounding; and each of 256 threads its eight components for a tile of
         * Q */
        traffic[i++] = (Traffic){"quantise", "K mean", 2 * keys * D * 4 + q_tiles * 256 * 32, 0};
    }
    traffic[i++] = (Traffic){"begin", "progress", 0, 4 * (1 + tiles)};
    traffic[i++] = (Traffic){"quantise", "progress", 4 * atomics, 4 * atomics};
    traffic[i++] = (Traffic){"quantise", "Q", times * q_bytes, 0};
    traffic[i++] = (Traffic){"quantise", "K", times * k_bytes, 0};
    traffic[i++] = (Traffic){"quantise", "V", times * k_bytes, 0};
    traffic[i++] = (Traffic){"quantise", "Q8", 0, (double)query_elements(p)};
    traffic[i++] = (Traffic){"quantise", "K8", 0, (double)key_elements(p)};
    traffic[i++] = (Traffic){"quantise", "VT8", 0, (double)vt_head_offset(p, p->batch, 0)};
    traffic[i++] = (Traffic){"quantise", "Q scales", 0, 4 * q_scales};
    traffic[i++] = (Traffic){"quantise", "K scales", 0, 4 * k_scales};
    traffic[i++] = (Traffic){"quantise", "V scales", 0, 4 * k_scales};
    traffic[i++] = (Traffic){"quantise", "LSE shift", 0, row_bytes(p)};
    return i;
}

/* The variants walk like tuned, over Br queries in tiles of Bc keys: VT8 whole tiles, K8 as far as keys exist; TMA,
 * which wgmma and overlapped have, knows only where the tensor ends, and a query tile that sees no key does without Q.
 * Each of two threads per query reads a scale of Q once, and those of K and V once per tile. */
static int attention_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc, int is_wgmma,
                             Traffic *traffic) {
    const int threads = 2 * Br;
    double queries = 0, keys_loaded = 0, tiles = 0, blocks = 0;
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += Br) {
            const int keys = key_length(p, key_lengths, b);
            const int end = first_row + Br < p->seqlen_q ? first_row + Br : p->seqlen_q;
            const int seen = visible_keys(p, keys, end - 1), stored = is_wgmma ? p->seqlen_k : keys;
            const double whole = round_up(seen, Bc);
            queries += p->heads * (is_wgmma && !seen ? 0 : end - first_row);
            keys_loaded += p->heads * (whole < stored ? whole : stored);
            tiles += p->heads * whole / Bc;
            blocks += p->heads;
        }
    const double D = p->head_dim;
    int i = 0;
    traffic[i++] = (Traffic){kernel, "Q8", queries * D, 0};
    traffic[i++] = (Traffic){kernel, "K8", keys_loaded * D, 0};
    traffic[i++] = (Traffic){kernel, "VT8", tiles * Bc * D, 0};
    traffic[i++] = (Traffic){kernel, "Q scales", 4.0 * threads * blocks, 0};
    traffic[i++] = (Traffic){kernel, "K scales", 4.0 * threads * tiles, 0};
    traffic[i++] = (Traffic){kernel, "V scales", 4.0 * threads * tiles, 0};
    traffic[i++] = (Traffic){kernel, "LSE shift", row_bytes(p), 0};
    traffic[i++] = (Traffic){kernel, "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){kernel, "LSE", 0, row_bytes(p)};
    return i;
}

int fp8_mma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return attention_traffic(p, key_lengths, "fp8_mma_kernel", 64, 64, 0, traffic);
}
int fp8_wgmma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return attention_traffic(p, key_lengths, "wgmma_attention", 64, 128, 1, traffic);
}
/* As 08_fa3's, it draws a number for each query tile. */
int fp8_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int Br = p->head_dim == 64 ? 192 : 128; /* overlapped.cu: Roles */
    int i = attention_traffic(p, key_lengths, "overlapped", Br, 128, 1, traffic);
    double draws = (double)p->batch * p->heads * ((p->seqlen_q + Br - 1) / Br);
    traffic[i++] = (Traffic){"overlapped", "next query tile", draws * 4, (draws + 1) * 4};
    return i;
}
