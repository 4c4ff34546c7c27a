/* 07_flash_decoding/cache - fills the K/V cache, in pages (fill_pages) or in 8 bits, which take two kernels, each over
 * K and V of all heads in slices. A *head* is a K/V head here, not a unit of work as in decode.h.
 *
 *     cache_largest         finds the largest |x| of each slice of a head's keys
 *     cache_fill_kernel     computes from those the head's scale, largest / 448, so that the largest x becomes e4m3's
 *                           largest number; then stores x / scale, rounded to e4m3. (Not x times 1 / scale: 1 / scale
 *                           is infinite where the keys are 1e-38, and 0 times infinity is NaN.)
 *
 * Device memory: K and V are read twice, 2 bytes per element, and written once, 1 byte.
 * Keys that do not exist become 0.
 */
#include "decode.h"
#include "../common/gpu/eight.cuh"

#include <stdlib.h>

enum {
    FILL_THREADS = 256,
    SLICES = 32, /* a head of K or of V: 8 K/V heads are then 512 blocks, four per multiprocessor of the largest chip */
};

/* Which keys a block works on. Blocks are numbered tensor by tensor (K, then V), in there head by head, in there slice
 * by slice. */
struct Slice {
    int tensor, head, slice; /* head: batch * kv_heads + K/V head */
    int first_key, end, keys; /* of the slice as stored; keys that exist in the whole head */
};
__device__ inline Slice slice_of(const Problem &p, const int *key_lengths) {
    const int heads = p.batch * p.kv_heads, slice = blockIdx.x % SLICES, head = blockIdx.x / SLICES % heads;
    const int a_slice = ceil_div(p.seqlen_k, SLICES), first_key = min(slice * a_slice, p.seqlen_k);
    const int end = min(first_key + a_slice, p.seqlen_k), keys = key_length(&p, key_lengths, head / p.kv_heads);
    return {(int)(blockIdx.x / SLICES / heads), head, slice, first_key, end, keys};
}

/* largest: [2, heads, SLICES] */
template <typename T> __global__ void cache_largest(Problem p, Tensors t, float *largest) {
    SHARED_MEMORY(shared, Maxima<FILL_THREADS>);
    const Slice s = slice_of(p, t.key_lengths);
    const T *from = (const T *)(s.tensor ? t.v : t.k) + (size_t)s.head * p.seqlen_k * p.head_dim;

    float m = 0, x[8];
    const size_t end = (size_t)min(s.end, s.keys) * p.head_dim;
    for (size_t i = (size_t)s.first_key * p.head_dim + 8 * threadIdx.x; i < end; i += 8 * FILL_THREADS) {
        load_8(x, from + i, true);
        m = largest_of(x, m);
    }
    m = block_max(shared, m);
    if (threadIdx.x == 0)
        largest[blockIdx.x] = m;
}

/* k, v: [heads, seqlen_k, D] e4m3; scales: [2, heads] */
template <typename T>
__global__ void cache_fill_kernel(Problem p, Tensors t, const float *largest, uint8_t *k, uint8_t *v, float *scales) {
    const Slice s = slice_of(p, t.key_lengths);
    const size_t offset = (size_t)s.head * p.seqlen_k * p.head_dim;
    const T *from = (const T *)(s.tensor ? t.v : t.k) + offset;
    uint8_t *to = (s.tensor ? v : k) + offset;

    float m = 0;
    for (int i = 0; i < SLICES; i++)
        m = fmaxf(m, largest[blockIdx.x - s.slice + i]);
    const float scale = m > 0 ? m / E4m3::largest : 1;
    if (s.slice == 0 && threadIdx.x == 0)
        scales[blockIdx.x / SLICES] = scale;

    const size_t exist = (size_t)s.keys * p.head_dim, end = (size_t)s.end * p.head_dim;
    for (size_t i = (size_t)s.first_key * p.head_dim + 8 * threadIdx.x; i < end; i += 8 * FILL_THREADS) {
        float x[8];
        load_8(x, from + i, i < exist);
        UNROLL for (int j = 0; j < 8; j++)
            x[j] /= scale;
        *reinterpret_cast<uint2 *>(to + i) = pack_8<E4m3>(x);
    }
}

/* Fills a page of the pool, whose rows have `chunks` chunks of 16 bytes, for entry blockIdx.x of the table, and writes
 * the entry. The page is as good as random: both steps of a round are one to one, so that no two entries get the same.
 * Numbers after the last entry stand for unused pages, which hold NaN, as do rows for which there is no key. A
 * sequence's entries after its last key are -1. */
__global__ void fill_pages(Problem p, Tensors t, Pages pages, int chunks, uint4 *k, uint4 *v, int *table) {
    const int entry = blockIdx.x, sequence = entry / pages.per_sequence,
              first_key = entry % pages.per_sequence << pages.shift;
    const size_t a_page = (size_t)p.kv_heads * pages.size * chunks;
    const int keys = sequence < p.batch ? key_length(&p, t.key_lengths, sequence) : 0;
    unsigned page = entry, last = pages.pool - 1;
    for (int round = 0; round < 3; round++)
        page = page * 40503 & last, page ^= page >> 3;

    if (threadIdx.x == 0 && sequence < p.batch)
        table[entry] = first_key < keys ? page : -1;
    for (size_t i = threadIdx.x; i < a_page; i += FILL_THREADS) {
        const size_t row = i / chunks, head = row / pages.size;
        const int key = first_key + row % pages.size;
        const size_t from = ((sequence * p.kv_heads + head) * p.seqlen_k + key) * chunks + i % chunks;
        const uint4 nan = {~0u, ~0u, ~0u, ~0u};
        k[page * a_page + i] = key < keys ? ((const uint4 *)t.k)[from] : nan;
        v[page * a_page + i] = key < keys ? ((const uint4 *)t.v)[from] : nan;
    }
}

PLANNER(cache_plan) {
    if (!cache_wanted(p))
        return 0;
    const Pages pages = pages_of(p);
    const size_t heads = (size_t)p->batch * p->kv_heads, page = (size_t)pages.size * p->kv_heads * p->head_dim;
    const size_t bytes = cache_is_8_bit(p) ? key_elements(p) : pages.pool * page * dtype_bytes(p->dtype);
    workspace[CACHE_K] = {"K cache", bytes, nullptr, 0};
    workspace[CACHE_V] = {"V cache", bytes, nullptr, 0};
    if (!cache_is_8_bit(p)) {
        workspace[CACHE_TABLE] = {"page table", (size_t)p->batch * pages.per_sequence * sizeof(int), nullptr, 0};
        return PAGE_BUFFERS;
    }
    workspace[CACHE_SCALES] = {"scales", 2 * heads * sizeof(float), nullptr, 0};
    workspace[CACHE_LARGEST] = {"largest of a slice", 2 * heads * SLICES * sizeof(float), nullptr, 0};
    return CACHE_BUFFERS;
}

LAUNCHER(cache_fill) {
    if (!cache_is_8_bit(p)) {
        const int chunks = p->head_dim * dtype_bytes(p->dtype) / 16;
        LAUNCH(fill_pages, pages_of(p).pool, FILL_THREADS, 0, *p, *t, pages_of(p), chunks,
               (uint4 *)workspace[CACHE_K].pointer, (uint4 *)workspace[CACHE_V].pointer,
               (int *)workspace[CACHE_TABLE].pointer);
        return;
    }
    float *largest = (float *)workspace[CACHE_LARGEST].pointer;
    const int blocks = 2 * p->batch * p->kv_heads * SLICES;
    WITH_HALF_TYPE(p->dtype, T, {
        LAUNCH(cache_largest<T>, blocks, FILL_THREADS, sizeof(Maxima<FILL_THREADS>), *p, *t, largest);
        LAUNCH(cache_fill_kernel<T>, blocks, FILL_THREADS, 0, *p, *t, largest, (uint8_t *)workspace[CACHE_K].pointer,
               (uint8_t *)workspace[CACHE_V].pointer, (float *)workspace[CACHE_SCALES].pointer);
    });
}
