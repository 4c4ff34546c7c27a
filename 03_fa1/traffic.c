/* traffic.c - the bytes that 03_fa1 moves: K and V once, everything that belongs to queries again at every key tile. */
#include "../common/traffic.h"

int fa1_fma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return keys_outer_traffic(p, key_lengths, "fa1_fma", 32, 16, traffic); /* the 16 threads that share a row */
}
int fa1_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return keys_outer_traffic(p, key_lengths, "fa1_kernel", 16384 / p->head_dim, 1, traffic);
}
