/* split_q.cu - FlashAttention-2, third change: each warp owns query rows, and warps exchange nothing.
 *
 * The idea. S = Q K^T can be cut between warps along the keys or along the queries. Along the keys (as FlashAttention-1
 * did) every warp ends up with a partial O for every row, to be summed through shared memory. Along the queries a warp
 * owns its rows from the first score to the final O: maximum, sum and output never leave its registers. All warps read the
 * same K and V tile, so the price is only that each of them reads all of it from shared memory.
 *
 * Who owns what. One block: one tile of Br queries of one head; it walks over the keys in tiles of Bc, the last one first.
 *
 *                 keys ->                              In a warp's 16 x 8 piece of S or O (one mma accumulator)
 *            +--------+--------+--------+               lane 4r + c, c = 0..3, holds columns 2c, 2c + 1
 *     warp 0 | 32 x Bc|        |        |               of row r and of row r + 8: the four lanes of a
 *     warp 1 | 32 x Bc|        |        |   queries     quad share two rows, and a row's maximum takes two
 *     warp 2 | 32 x Bc|        |        |      |        shuffles within the quad.
 *     warp 3 | 32 x Bc|        |        |      v
 *            +--------+--------+--------+
 *
 * What it costs. 4 Br Bc D FLOPs a tile of S on the tensor cores and Br Bc exponentials on the special-function units.
 * Device memory: Q and O once, K and V once a query tile (mostly from L2): 2 bytes * D * (2 Br + 2 Sk) a block.
 * Registers a lane, the resource that decides the tile: O takes Br D / 128, S takes Br Bc / 128. With Br = 128: D + Bc.
 *
 * How to run it: ./04_fa2 --variant split_q --head-dim 128 --causal
 */
#include "../common/gpu/kernel.cuh"
#include "../common/gpu/tile.cuh"

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;
constexpr unsigned whole_warp = 0xffffffff;

/* The tile of one block. A warp owns 32 rows, two m16 tiles, so that each fragment of K and V read from shared memory
 * feeds two mma; at D = 256 the accumulator of 32 rows alone would fill the 255 registers of a lane, so there it owns 16.
 * Bc is what the registers leave: D + Bc <= 192. */
template <int D> struct Shape {
    static constexpr int row_tiles = D <= 128 ? 2 : 1; /* m16 tiles a warp */
    static constexpr int Br = warps * 16 * row_tiles;
    static constexpr int Bc = D <= 64 ? 128 : D <= 128 ? 64 : 32;
};

/* Shared memory: Br + 2 Bc rows of D. K and V are single-buffered: V arrives while Q K^T is computed, the next K while
 * P V is. At most 64 KB, so two blocks fit a multiprocessor and one's softmax overlaps the other's tensor-core work. */
template <typename T, int D> struct Shared {
    Tile<T, Shape<D>::Br, D> q; /* O on the way out */
    Tile<T, Shape<D>::Bc, D> k, v;
};

template <typename T, int D>
__global__ void __launch_bounds__(threads, 2) fa2_split_q_kernel(Problem p, Tensors t, int heads_together) {
    constexpr int row_tiles = Shape<D>::row_tiles, Br = Shape<D>::Br, Bc = Shape<D>::Bc;
    using SharedTiles = Shared<T, D>;
    SHARED_MEMORY(SharedTiles, shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    /* Which query tile of which head. Blocks start in order of their index: heads_together heads at a time, so that their
     * K and V stay in L2, and among these the last query tile first: under a causal mask it is the longest. */
    const int query_tiles = ceil_div(p.seqlen_q, Br), all_heads = p.batch * p.heads;
    const int group = blockIdx.x / (heads_together * query_tiles), in_group = blockIdx.x % (heads_together * query_tiles);
    const int group_heads = min(heads_together, all_heads - group * heads_together);
    const int head_index = group * heads_together + in_group % group_heads;
    const int batch = head_index / p.heads, head = head_index % p.heads;
    const int first_row = (query_tiles - 1 - in_group / group_heads) * Br;

    const T *q = static_cast<const T *>(t.q) + query_head_offset(&p, batch, head);
    const T *k = static_cast<const T *>(t.k) + key_head_offset(&p, batch, kv_head_of(&p, head));
    const T *v = static_cast<const T *>(t.v) + key_head_offset(&p, batch, kv_head_of(&p, head));

    /* The key tiles to visit: up to the last key that the last row sees. Those before unmasked_tiles are seen whole by the
     * first row, hence by all. */
    const int keys = key_length(&p, t.key_lengths, batch);
    const int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    const int unmasked_tiles = visible_keys(&p, keys, first_row) / Bc;

    load_tile_async<threads>(shared.q, q, first_row, p.seqlen_q);
    if (key_tiles > 0)
        load_tile_async<threads>(shared.k, k, (key_tiles - 1) * Bc, keys);

    /* This lane's share of the running state. Index [i][h]: the row 16 i + 8 h + lane / 4 of its warp. */
    float o[row_tiles][D / 8][4] = {};
    float m[row_tiles][2], l[row_tiles][2];
    for (int i = 0; i < row_tiles; i++)
        for (int h = 0; h < 2; h++) {
            m[i][h] = -INFINITY;
            l[i][h] = 0;
        }
    const int warp_row = warp * 16 * row_tiles;
    const float scale_log2 = p.scale * log2_e; /* e^(scale s) = 2^(scale_log2 s) */

    for (int tile = key_tiles - 1; tile >= 0; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there for everyone, and everyone is done with V */
        load_tile_async<threads>(shared.v, v, tile * Bc, keys);

        /* S = Q K^T */
        float s[row_tiles][Bc / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) { /* 16 of the D dimensions: two chunks of eight */
            uint32_t a[row_tiles][4];
            for (int i = 0; i < row_tiles; i++)
                ldmatrix_x4(a[i], shared.q.chunk(warp_row + 16 * i + lane % 16, d + lane / 16));
#pragma unroll
            for (int c = 0; c < Bc / 8; c += 2) { /* 16 keys */
                uint32_t b[4];
                ldmatrix_x4(b, shared.k.chunk(8 * c + lane % 8 + lane / 16 * 8, d + lane / 8 % 2));
                for (int i = 0; i < row_tiles; i++) {
                    mma_m16n8k16<T>(s[i][c], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(s[i][c + 1], a[i], b[2], b[3]);
                }
            }
        }

        cp_async_wait<0>();
        __syncthreads(); /* V is there for everyone, and everyone is done with K */
        if (tile > 0)
            load_tile_async<threads>(shared.k, k, (tile - 1) * Bc, keys);

        /* Keys a row does not see: only in the tiles that the diagonal or the end of the keys cuts */
        if (tile >= unmasked_tiles)
            for (int i = 0; i < row_tiles; i++)
                for (int h = 0; h < 2; h++) {
                    const int row = first_row + warp_row + 16 * i + 8 * h + lane / 4;
                    const int seen = visible_keys(&p, keys, row) - tile * Bc - lane % 4 * 2;
                    for (int c = 0; c < Bc / 8; c++)
                        for (int j = 0; j < 2; j++)
                            if (8 * c + j >= seen)
                                s[i][c][2 * h + j] = -INFINITY;
                }

        /* m = the maximum so far; what was summed under the old one is rescaled */
        float m_scaled[row_tiles][2];
        for (int i = 0; i < row_tiles; i++)
            for (int h = 0; h < 2; h++) {
                float tile_max = m[i][h];
                for (int c = 0; c < Bc / 8; c++)
                    tile_max = fmaxf(tile_max, fmaxf(s[i][c][2 * h], s[i][c][2 * h + 1]));
                tile_max = fmaxf(tile_max, __shfl_xor_sync(whole_warp, tile_max, 1));
                tile_max = fmaxf(tile_max, __shfl_xor_sync(whole_warp, tile_max, 2));

                /* a row that has seen no key yet: 2^(-inf - 0) = 0, where -inf - -inf would be NaN */
                m_scaled[i][h] = tile_max == -INFINITY ? 0 : tile_max * scale_log2;
                const float alpha = exp2_approx(m[i][h] * scale_log2 - m_scaled[i][h]);
                m[i][h] = tile_max;
                l[i][h] *= alpha;
                for (int d = 0; d < D / 8; d++) {
                    o[i][d][2 * h] *= alpha;
                    o[i][d][2 * h + 1] *= alpha;
                }
            }

        /* P = 2^(scale_log2 S - m_scaled), one FFMA and one ex2 an element, and O += P V, 16 keys at a time: the special-
         * function units work on the next 16 while the tensor cores multiply these. l stays a lane's own sum until the end */
#pragma unroll
        for (int c = 0; c < Bc / 8; c += 2) {
            uint32_t a[row_tiles][4];
            for (int i = 0; i < row_tiles; i++)
                for (int j = 0; j < 4; j++) { /* j as in mma's A: 8 rows further down, then 8 keys further right */
                    const int h = j % 2;
                    const float *score = s[i][c + j / 2];
                    const float low = exp2_approx(score[2 * h] * scale_log2 - m_scaled[i][h]);
                    const float high = exp2_approx(score[2 * h + 1] * scale_log2 - m_scaled[i][h]);
                    l[i][h] += low + high;
                    a[i][j] = pack_pair<T>(low, high);
                }
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, shared.v.chunk(8 * c + lane % 16, d + lane / 16));
                for (int i = 0; i < row_tiles; i++) {
                    mma_m16n8k16<T>(o[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(o[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    /* Divide once, and write LSE. A row without keys has l = 0: O = 0, LSE = -inf */
    cp_async_wait<0>();
    __syncthreads(); /* nobody's copy of Q is under way any more: needed when there was no key tile at all */
    for (int i = 0; i < row_tiles; i++)
        for (int h = 0; h < 2; h++) {
            float sum = l[i][h];
            sum += __shfl_xor_sync(whole_warp, sum, 1);
            sum += __shfl_xor_sync(whole_warp, sum, 2);
            const float inverse = sum > 0 ? 1 / sum : 0;
            const int warp_tile_row = warp_row + 16 * i + 8 * h + lane / 4;
            for (int d = 0; d < D / 8; d++) {
                uint32_t pair = pack_pair<T>(o[i][d][2 * h] * inverse, o[i][d][2 * h + 1] * inverse);
                *reinterpret_cast<uint32_t *>(shared.q.chunk(warp_tile_row, d) + lane % 4 * 2) = pair;
            }
            const int row = first_row + warp_tile_row;
            if (lane % 4 == 0 && row < p.seqlen_q)
                t.lse[((size_t)batch * p.heads + head) * p.seqlen_q + row] =
                    sum > 0 ? m[i][h] * p.scale + logf(sum) : -INFINITY;
        }

    /* O goes out through Q's tile, so that a lane stores 16 bytes and a warp whole rows; each warp its own rows */
    __syncwarp();
    T *out = static_cast<T *>(t.o) + query_head_offset(&p, batch, head);
    constexpr int chunks = D / 8;
    for (int i = lane; i < 16 * row_tiles * chunks; i += 32) {
        const int row = warp_row + i / chunks;
        if (first_row + row < p.seqlen_q)
            store_16(out + (size_t)(first_row + row) * D + i % chunks * 8, load_16(shared.q.chunk(row, i % chunks)));
    }
}

template <typename T, int D> static void launch_split_q(const Problem &p, const Tensors &t) {
    /* Heads whose K and V fill half of the L2 run together. Query heads of one group share theirs. */
    const size_t head_bytes = 2 * sizeof(T) * p.seqlen_k * D * p.kv_heads / p.heads + 1;
    const size_t fit = device_properties()->l2_bytes / 2 / head_bytes;
    const int all_heads = p.batch * p.heads;
    const int heads_together = fit < 1 ? 1 : fit < (size_t)all_heads ? (int)fit : all_heads;
    const int blocks = all_heads * ceil_div(p.seqlen_q, Shape<D>::Br);
    LAUNCH((fa2_split_q_kernel<T, D>), blocks, threads, sizeof(Shared<T, D>), p, t, heads_together);
}

extern "C" void fa2_split_q(const Problem *p, const Tensors *t, const Buffer *) {
    WITH_HALF_TYPE(p->dtype, T, switch (p->head_dim) {
        case 32: launch_split_q<T, 32>(*p, *t); break;
        case 64: launch_split_q<T, 64>(*p, *t); break;
        case 96: launch_split_q<T, 96>(*p, *t); break;
        case 128: launch_split_q<T, 128>(*p, *t); break;
        case 256: launch_split_q<T, 256>(*p, *t); break;
    });
}
