/* traffic.c - the bytes that 03_fa1 moves: K and V once, everything that belongs to queries again at every key tile. */
#include "../common/traffic.h"

int fa1_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return keys_outer_traffic(p, key_lengths, "fa1_kernel", traffic);
}
