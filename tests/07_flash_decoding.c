/* 07_flash_decoding.c - the pages of a cache, and what they hold; and the key tiles of all heads, which are counted in ints: what is refused, and
 * that nothing overflows before. */
#include "../07_flash_decoding/decode.h"
#include "../common/device/device.h"
#include "../common/harness/tensors.h"
#include "tap.h"

#include <limits.h>
#include <stdlib.h>

extern const Stage stage;

/* Two sequences of 40 keys and of 5, in pages of 16: where the table says that a page is, its keys are; all the rest is NaN. */
static void test_pages(void) {
    enum { D = 8, BATCH = 2, KV_HEADS = 2, SEQLEN = 40, SIZE = 16, ELEMENTS = BATCH * KV_HEADS * SEQLEN * D, MOST = 16 * KV_HEADS * SIZE * D };
    const int lengths[] = {SEQLEN, 5};
    static uint16_t given[2][ELEMENTS], pool[MOST];
    Problem p = {BATCH, KV_HEADS, KV_HEADS, 1, SEQLEN, D, DTYPE_FP16, 0, 1, {[PAGE_SIZE] = 1}, NULL, NULL};
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    void *inputs[3];
    for (int tensor = 0; tensor < 3; tensor++) {
        size_t bytes = tensor < 2 ? sizeof given[0] : sizeof lengths;
        for (int i = 0; tensor < 2 && i < ELEMENTS; i++)
            given[tensor][i] = (uint16_t)(tensor * ELEMENTS + i);
        inputs[tensor] = upload(tensor < 2 ? (const void *)given[tensor] : lengths, bytes, "input");
    }
    Tensors t = {.k = inputs[0], .v = inputs[1], .key_lengths = inputs[2]};
    int buffers = cache_plan(&p, workspace), table[BATCH * 3], wrong = 0, nan = 0, pages = (int)pages_of(&p).pool, in_order = 0;
    for (int i = 0; i < buffers; i++)
        workspace[i].pointer = device_alloc(workspace[i].bytes, workspace[i].purpose);
    cache_fill(&p, &t, workspace);
    device_read(table, workspace[CACHE_TABLE].pointer, sizeof table);
    ok(buffers == PAGE_BUFFERS && workspace[CACHE_TABLE].bytes == sizeof table && workspace[CACHE_K].bytes <= sizeof pool, "three buffers");
    ok(table[0] >= 0 && table[1] >= 0 && table[2] >= 0 && table[3] >= 0 && table[4] == -1 && table[5] == -1, "entries behind the last key are -1");
    for (int i = 1; i < 4; i++)
        in_order += table[i] == table[i - 1] + 1;
    ok(in_order < 3, "and the pages are not in order");
    for (int tensor = 0; tensor < 2; tensor++) {
        device_read(pool, workspace[tensor].pointer, workspace[tensor].bytes);
        for (int b = 0; b < BATCH; b++)
            for (int head = 0; head < KV_HEADS; head++)
                for (int i = 0; i < lengths[b] * D; i++) {
                    int key = i / D, row = (table[b * 3 + key / SIZE] * KV_HEADS + head) * SIZE + key % SIZE;
                    wrong += pool[row * D + i % D] != given[tensor][((b * KV_HEADS + head) * SEQLEN + key) * D + i % D];
                }
        for (int i = 0; i < pages * KV_HEADS * SIZE * D; i++)
            nan += pool[i] == 0xffff;
    }
    ok(!wrong, "all keys are where the table says");
    ok(nan == 2 * KV_HEADS * D * (pages * SIZE - lengths[0] - lengths[1]), "and all the rest is NaN");
    for (int i = 0; i < buffers; i++)
        device_free(workspace[i].pointer);
    for (int i = 0; i < 3; i++)
        device_free(inputs[i]);
}

int main(void) {
    test_pages();
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
