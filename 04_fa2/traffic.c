/* traffic.c - the bytes that 04_fa2's variants move. `epilogue` moves what 03_fa1 moves. In the others queries are the outer
 * loop: Q, O and LSE move once, K and V once for each tile of queries. */
#include "../common/traffic.h"

int fa2_epilogue_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return keys_outer_traffic(p, key_lengths, "epilogue_kernel", 16384 / p->head_dim, 1, traffic);
}

int fa2_loop_swap_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return queries_outer_traffic(p, key_lengths, "loop_swap_kernel", 32, 1, traffic);
}

int fa2_split_q_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return queries_outer_traffic(p, key_lengths, "split_q_kernel", 64, 1, traffic);
}

int fa2_tuned_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int D = p->head_dim, Br = D <= 128 ? 128 : 64, Bc = D <= 64 ? 128 : D <= 128 ? 64 : 32; /* tuned.cu: Shape */
    return queries_outer_traffic(p, key_lengths, "tuned", Br, Bc, traffic);
}
