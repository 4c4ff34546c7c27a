/* 07_flash_decoding.c - the key tiles of all heads are counted in ints: what is refused, and that nothing overflows before. */
#include "../07_flash_decoding/decode.h"
#include "tap.h"

#include <limits.h>

extern const Stage stage;

int main(void) {
    /* 16 queries of 65535 heads that share one K/V head are 262,140 tiles of FP32_ROWS rows */
    Problem p = {.batch = 1, .heads = 65535, .kv_heads = 1, .seqlen_q = 16, .head_dim = 128, .dtype = DTYPE_FP32};
    int first = 1, last = MAX_SEQLEN; /* the most keys that are taken, by halving */
    while (first < last) {
        p.seqlen_k = first + (last - first + 1) / 2;
        if (stage.variants[2].refuses(&p))
            last = p.seqlen_k - 1;
        else
            first = p.seqlen_k;
    }
    p.seqlen_k = first;
    Work work = work_of(&p);
    double tiles = (double)work.heads * work.tiles;
    int most_blocks = 1 << 20; /* at once; the largest chips hold some thousands */
    ok(tiles > 1e9, "one billion key tiles are taken");
    ok(tiles + most_blocks - 1 <= INT_MAX, "and ints hold them, rounded up to whole shares");
    for (int i = 0; stage.variants[i].name; i++) {
        p.seqlen_k = first;
        int takes = stage.variants[i].refuses(&p) == NULL;
        p.seqlen_k = first + work.tile_keys;
        ok(takes && stage.variants[i].refuses(&p), "%s refuses more", stage.variants[i].name);
    }
    return tap_done();
}
