/* traffic.c - the bytes that 10_block_sparse moves. */
#include "../common/traffic.h"

/* Every tile up to the last key that its rows see; V of those alone of which something is kept. */
extern Predictor sparse_masked_traffic;
int sparse_masked_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    static const BlockMask everything;
    const BlockMask *mask = p->blocks ? &p->blocks->mask : &everything;
    const int Bc = p->head_dim <= 64 ? 128 : 64;
    double values = 0; /* rows of V */
    for (int b = 0; b < p->batch; b++)
        for (int row = 0; row < p->seqlen_q; row += MASK_BLOCK)
            for (int key = 0, keys = key_length(p, key_lengths, b); key < keys; key += Bc)
                if (tile_kept(mask, p, keys, row, row + MASK_BLOCK, key, key + Bc) != TILE_NONE)
                    values += p->heads * (double)smaller_of(Bc, keys - key);
    int count = queries_outer_traffic(p, key_lengths, "masked", MASK_BLOCK, Bc, traffic);
    for (int i = 0; i < count; i++)
        if (strcmp(traffic[i].tensor, "V") == 0)
            traffic[i].read = values * p->head_dim * (double)dtype_bytes(p->dtype);
    return count;
}
