/* fa3.cuh - what the three kernels of 08_fa3 share: where a query tile stands, the mask, the softmax of a tile of S in
 * registers, and how O is written. It is 04_fa2's arithmetic on the registers of a warpgroup, and nothing here is asynchronous.
 *
 * A warpgroup owns 64 rows. S is its accumulator of Bc columns, O one of D columns (hopper.cuh): a warp has 16 rows, and lane
 * 4r + c has columns 8i + 2c and 8i + 2c + 1 of row r in elements 4i and 4i + 1 of its array, and of row r + 8 in 4i + 2
 * and 4i + 3. These 16 rows by 8 columns are an *atom*, and the four lanes that share a row are a *quad*.
 */
#ifndef FA_FA3_CUH
#define FA_FA3_CUH

#include "../common/gpu/hopper.cuh"
#include "../common/gpu/softmax.cuh"

/* How far, in powers of two, the maximum may pass m before O is rescaled (04_fa2: P is then at most 2^8). [[maybe_unused]],
 * here and in the kernels: for chips without wgmma these are empty. */
[[maybe_unused]] constexpr float SLACK = 8;

/* Br queries of one head, and how far they see. */
struct QueryTile {
    int batch_head, kv_matrix; /* number of the matrix in Q and O, and in K and V: heads counted through the whole batch */
    int first_row, keys;       /* its first query; the keys that the batch entry has */
    int key_tiles;             /* of Bc keys, up to the last one that its last row sees */
    int whole_tiles;           /* those that its first row sees whole: they need no mask */
};

/* The order in which blocks take the query tiles, 0 .. count - 1. Heads come in groups of `together`; within a group the last
 * query tile of every head comes first. Under a causal mask it sees the most keys, and a long tile that starts late keeps
 * the whole chip waiting. Groups are small, because blocks that work on one head share its K and V through L2. */
struct TileOrder {
    int together, count;
};

/* Without a causal mask all tiles are equally long: one head at a time. With a causal mask as many heads as have their K and
 * V in a quarter of L2, so that there are long tiles to start with and short ones to fill up with; groups of equal size. */
inline TileOrder tile_order(const Problem &p, int Br) {
    const size_t head_bytes = 2 * dtype_bytes(p.dtype) * p.seqlen_k * p.head_dim;
    const size_t fit = device_properties()->l2_bytes / 4 / head_bytes + 1;
    const int heads = p.batch * p.heads, most = !p.causal ? 1 : fit < (size_t)heads ? (int)fit : heads;
    return {ceil_div(heads, ceil_div(heads, most)), heads * ceil_div(p.seqlen_q, Br)};
}

/* Tile number i. */
__device__ inline QueryTile query_tile(const Problem &p, const int *key_lengths, const TileOrder &order, int i, int Br,
                                       int Bc) {
    const int query_tiles = ceil_div(p.seqlen_q, Br), first_head = i / (order.together * query_tiles) * order.together;
    const int heads = min(order.together, p.batch * p.heads - first_head), turn = i - first_head * query_tiles;
    const int batch_head = first_head + turn % heads, first_row = (query_tiles - 1 - turn / heads) * Br;
    const int batch = batch_head / p.heads, keys = key_length(&p, key_lengths, batch);
    return {batch_head, batch * p.kv_heads + kv_head_of(&p, batch_head % p.heads), first_row, keys,
            ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc),
            visible_keys(&p, keys, first_row) / Bc};
}

/* TMA stops at the tensor's last key, not at the last one that this batch entry has. The rows between may hold NaN, and P V
 * would have 0 · NaN = NaN: so those rows of V's tile, from `first` on, become zeros. Called by `threads` threads, `thread`
 * from 0 on; they must meet at a barrier before wgmma reads V. K needs no zeros: the mask replaces those scores. */
template <typename V> __device__ inline void zero_rows(V &v, int first, int rows, int thread, int threads) {
    const int chunks = V::bytes / 16 / rows;
    for (int i = first * chunks + thread; i < rows * chunks; i += threads)
        store_16(v.chunk(i / chunks, i % chunks), uint4{0, 0, 0, 0});
    proxy_fence();
}

/* Scores that a row does not see become -inf. `row` is the lane's first one, first_key the tile's. */
template <int Bc>
__device__ inline void mask(float (&s)[Bc / 2], const Problem &p, int keys, int row, int first_key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int seen = visible_keys(&p, keys, row + 8 * (e / 2)) - first_key - (2 * (lane % 4) + e % 2);
#pragma unroll
        for (int i = 0; i < Bc / 8; i++)
            s[4 * i + e] = 8 * i < seen ? s[4 * i + e] : -INFINITY;
    }
}

/* S becomes P = 2^(scale_log2 S - m), in place. Updates m, which is stored times scale_log2, and this lane's part of l.
 * Returns whether any row's m has changed; O must then be multiplied by `factor`. m starts at -inf: a row that has seen no key
 * yet keeps it, and its P are 2^-inf = 0. */
template <int Bc>
__device__ inline bool softmax(float (&s)[Bc / 2], float (&m)[2], float (&l)[2], float (&factor)[2], float scale_log2) {
    bool moved = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float tile_max = s[2 * h];
#pragma unroll
        for (int i = 0; i < Bc / 8; i++)
            tile_max = fmaxf(tile_max, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        tile_max = quad_max(tile_max);
        const float m_new = tile_max * scale_log2 > m[h] + SLACK ? tile_max * scale_log2 : m[h];
        factor[h] = m_new == m[h] ? 1 : exp2_approx(m[h] - m_new); /* avoids -inf - (-inf) */
        moved |= m_new != m[h];
        l[h] *= factor[h];
        m[h] = m_new;
        const float shift = shift_of(m_new);
#pragma unroll
        for (int i = 0; i < Bc / 8; i++)
#pragma unroll
            for (int j = 4 * i + 2 * h; j < 4 * i + 2 * h + 2; j++) {
                s[j] = exp2_approx(s[j] * scale_log2 - shift);
                l[h] += s[j];
            }
    }
    return __any_sync(WHOLE_WARP, moved);
}

template <int Count> __device__ inline void rescale(float (&o)[Count], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < Count; i++)
        o[i] *= factor[i / 2 % 2];
}

/* P, rounded, as the A operand of P V: a step is 16 keys, two atoms of the accumulator, and no lane needs another's. */
template <typename T, int Steps> __device__ inline void to_operand(uint32_t (&a)[Steps][4], const float (&p)[8 * Steps]) {
#pragma unroll
    for (int step = 0; step < Steps; step++)
#pragma unroll
        for (int j = 0; j < 4; j++) /* j % 2 is 8 rows down, j / 2 is 8 keys right */
            a[step][j] = pack_pair<T>(p[8 * step + 2 * j], p[8 * step + 2 * j + 1]);
}

/* Divides O by l and writes it and LSE. `row` is the lane's first one. A row that saw no key has l = 0: O = 0, LSE = -inf.
 *
 * A lane has two columns of each atom, 4 bytes. So that it can store 16, the quad swaps four atoms: lane c gives its part of
 * atom d to lane d, and ends up with all eight columns of atom c. Two rounds do it, with the neighbour at distance 1 and 2. */
template <typename T, int D>
__device__ inline void write_output(const Problem &p, const Tensors &t, int batch_head, int row, const float (&o)[D / 2],
                                    const float (&m)[2], const float (&l)[2]) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(l[h]);
        const float inverse = sum > 0 ? 1 / sum : 0;
        const size_t flat_row = (size_t)batch_head * p.seqlen_q + row + 8 * h;
        const bool exists = row + 8 * h < p.seqlen_q;
        if (c == 0 && exists)
            t.lse[flat_row] = sum > 0 ? m[h] * LN_2 + logf(sum) : -INFINITY;
#pragma unroll
        for (int atom = 0; atom < D / 8; atom += 4) {
            uint32_t x[4]; /* of atoms atom .. atom + 3 */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *columns = o + 4 * (atom + i) + 2 * h;
                x[i] = pack_pair<T>(columns[0] * inverse, columns[1] * inverse);
            }
#pragma unroll
            for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!(i & distance)) { /* of the atoms i and i + distance, a lane keeps the one on its own side */
                        const bool upper = c & distance;
                        const uint32_t other = __shfl_xor_sync(WHOLE_WARP, upper ? x[i] : x[i + distance], distance);
                        if (upper)
                            x[i] = other;
                        else
                            x[i + distance] = other;
                    }
            if (exists)
                store_16((T *)t.o + flat_row * D + 8 * (atom + c), uint4{x[0], x[1], x[2], x[3]});
        }
    }
}

#endif
