/* 05_fa2_backward/atomic - all three gradients in one pass over the tiles of S, dQ by atomic additions.
 */
#include "backward.cuh"

/* A warp owns 16 m_tiles keys. dK and dV take D m_tiles registers a lane together, so at D = 64 a warp owns 32 keys ... */
template <int D, int Br> struct Shape {
    static constexpr int m_tiles = D == 64 ? 2 : 1; /* m16 tiles of keys a warp */
    static constexpr int warps = Br * D / (32 * 32);
    static constexpr int threads = 32 * warps;
    static constexpr int Bc = 16 * m_tiles * warps;
    static constexpr int blocks = D == 64 ? 2 : 1;
    static constexpr bool resident = D == 128;
};

template <typename T, int D, int Br> struct AtomicShared {
    static constexpr int Bc = Shape<D, Br>::Bc;
    Tile<T, Bc, D> k, v;
    Tile<T, Br, D> q[2], d_o[2];
    Tile<T, Bc, Br> ds[2]; /* dS^T: [key][query] */
    alignas(16) RowStatistics statistics[2][Br];
};

template <typename T, int D, int Br>
__global__ void __launch_bounds__(Shape<D, Br>::threads, Shape<D, Br>::blocks)
    backward_atomic(Problem p, Tensors t, const RowStatistics *statistics, float *dq_accumulator) {
    using S = Shape<D, Br>;
    constexpr int m_tiles = S::m_tiles, Bc = S::Bc, THREADS = S::threads;
    using Shared = AtomicShared<T, D, Br>;
    SHARED_MEMORY(Shared, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_key = warp * 16 * m_tiles; /* the warp's first key in the tile */

    const int key_tiles = ceil_div(p.seqlen_k, Bc);
    const int batch = blockIdx.x / key_tiles / p.kv_heads, kv_head = blockIdx.x / key_tiles % p.kv_heads;
    const int first_key = blockIdx.x % key_tiles * Bc;
    const int keys = key_length(&p, t.key_lengths, batch);
    const size_t kv_offset = key_head_offset(&p, batch, kv_head);

    /* The queries that see any of these keys: under a causal mask from row first_key - (keys - seqlen_q) on. A step is one
     * query tile of one head; the heads of the group follow each other, and dK and dV are summed over all of them. */
    const int query_tiles = ceil_div(p.seqlen_q, Br), group = p.heads / p.kv_heads;
    const int first_row = p.causal ? max(first_key - (keys - p.seqlen_q), 0) : 0;
    const int first_tile = min(first_row / Br, query_tiles);
    const int steps = first_key < keys ? group * (query_tiles - first_tile) : 0;

    auto head_of_step = [&](int step) { return kv_head * group + step / (query_tiles - first_tile); };
    auto row_of_step = [&](int step) { return (first_tile + step % (query_tiles - first_tile)) * Br; };
    auto load_step = [&](int step) {
        const int head = head_of_step(step), row = row_of_step(step);
        const size_t offset = query_head_offset(&p, batch, head);
        load_statistics_async(shared.statistics[step % 2],
                              statistics + ((size_t)batch * p.heads + head) * padded_rows(&p) + row);
        load_tile_async<THREADS>(shared.q[step % 2], (const T *)t.q + offset, row, p.seqlen_q);
        load_tile_async<THREADS>(shared.d_o[step % 2], (const T *)t.d_o + offset, row, p.seqlen_q);
    };

    /* dQ of the step before: dS K, both from shared memory. The tile of dQ is cut into 32 x 32 pieces, one a warp. */
    auto add_dq = [&](int step) {
        constexpr int warps_down = Br / 32;
        const int warp_row = 32 * (warp % warps_down), warp_d = 32 * (warp / warps_down);
        float dq[2][4][4] = {};
#pragma unroll
        for (int k = 0; k < Bc / 16; k++) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_a_fragment_trans(a[i], shared.ds[step % 2], k, warp_row + 16 * i);
#pragma unroll
            for (int d = 0; d < 4; d += 2) {
                uint32_t b[4];
                load_b_fragments_trans(b, shared.k, k, warp_d + 8 * d);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_m16n8k16<T>(dq[i][d], a[i], b[0], b[1]);
                    mma_m16n8k16<T>(dq[i][d + 1], a[i], b[2], b[3]);
                }
            }
        }
        float *to = dq_accumulator +
                    (((size_t)batch * p.heads + head_of_step(step)) * padded_rows(&p) + row_of_step(step)) * D + warp * 32 * 32;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int d = 0; d < 4; d++)
                atomic_add_4(to + ((4 * i + d) * 32 + lane) * 4,
                             make_float4(dq[i][d][0], dq[i][d][1], dq[i][d][2], dq[i][d][3]));
    };

    load_tile_async<THREADS>(shared.k, (const T *)t.k + kv_offset, first_key, keys);
    load_tile_async<THREADS>(shared.v, (const T *)t.v + kv_offset, first_key, keys);
    if (steps > 0)
        load_step(0);

    float dk[m_tiles][D / 8][4] = {}, dv[m_tiles][D / 8][4] = {};
    uint32_t k_a[m_tiles][D / 16][4], v_a[m_tiles][D / 16][4];
    if (S::resident) {
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                load_a_fragment(k_a[i][d], shared.k, warp_key + 16 * i, d);
                load_a_fragment(v_a[i][d], shared.v, warp_key + 16 * i, d);
            }
    }
    const float scale_log2 = p.scale * LOG2_E;

    for (int step = 0; step < steps; step++) {
        const int stage = step % 2, row = row_of_step(step);
        cp_async_wait<0>();
        __syncthreads(); /* Q and dO are there, so is dS of the step before; and every warp is done with the other stage */
        if (step + 1 < steps)
            load_step(step + 1);
        if (step > 0)
            add_dq(step - 1);

        const bool masked = first_key + Bc > visible_keys(&p, keys, row);
#pragma unroll 1
        for (int chunk = 0; chunk < Br; chunk += 32) {
            /* S^T = K Q^T, dP^T = V dO^T */
            float s[m_tiles][4][4] = {}, dp[m_tiles][4][4] = {};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                if (!S::resident)
#pragma unroll
                    for (int i = 0; i < m_tiles; i++)
                        load_a_fragment(k_a[i][d], shared.k, warp_key + 16 * i, d);
#pragma unroll
                for (int c = 0; c < 4; c += 2) {
                    uint32_t b[4];
                    load_b_fragments(b, shared.q[stage], chunk + 8 * c, d);
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(s[i][c], k_a[i][d], b[0], b[1]);
                        mma_m16n8k16<T>(s[i][c + 1], k_a[i][d], b[2], b[3]);
                    }
                }
            }
            float delta[4][2];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const RowStatistics *pair = &shared.statistics[stage][chunk + 8 * c + 2 * (lane % 4)];
                const uint4 both = load_16(pair);
                const float lse[2] = {__uint_as_float(both.x), __uint_as_float(both.z)};
                delta[c][0] = __uint_as_float(both.y), delta[c][1] = __uint_as_float(both.w);
#pragma unroll
                for (int i = 0; i < m_tiles; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[i][c][e] = exp2_approx(s[i][c][e] * scale_log2 - lse[e % 2]);
            }
            if (masked) {
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int query = row + chunk + 8 * c + 2 * (lane % 4) + e % 2;
                        const int seen = visible_keys(&p, keys, query) - first_key - warp_key - lane / 4 - 8 * (e / 2);
#pragma unroll
                        for (int i = 0; i < m_tiles; i++)
                            s[i][c][e] = 16 * i < seen ? s[i][c][e] : 0;
                    }
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                if (!S::resident)
#pragma unroll
                    for (int i = 0; i < m_tiles; i++)
                        load_a_fragment(v_a[i][d], shared.v, warp_key + 16 * i, d);
#pragma unroll
                for (int c = 0; c < 4; c += 2) {
                    uint32_t b[4];
                    load_b_fragments(b, shared.d_o[stage], chunk + 8 * c, d);
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(dp[i][c], v_a[i][d], b[0], b[1]);
                        mma_m16n8k16<T>(dp[i][c + 1], v_a[i][d], b[2], b[3]);
                    }
                }
            }

            /* dS; and P^T, dS^T from accumulators to operands */
            uint32_t p_a[m_tiles][2][4], ds_a[m_tiles][2][4];
#pragma unroll
            for (int i = 0; i < m_tiles; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const float low = s[i][c][2 * h], high = s[i][c][2 * h + 1];
                        p_a[i][c / 2][2 * (c % 2) + h] = pack_pair<T>(low, high);
                        const uint32_t ds = pack_pair<T>(low * (dp[i][c][2 * h] - delta[c][0]), high * (dp[i][c][2 * h + 1] - delta[c][1]));
                        ds_a[i][c / 2][2 * (c % 2) + h] = ds;
                        T *to = shared.ds[stage].chunk(warp_key + 16 * i + 8 * h + lane / 4, chunk / 8 + c) + 2 * (lane % 4);
                        *reinterpret_cast<uint32_t *>(to) = ds;
                    }

            /* dV += P^T dO, dK += dS^T Q */
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int d = 0; d < D / 8; d += 2) {
                    uint32_t b[4];
                    load_b_fragments_trans(b, shared.d_o[stage], chunk / 16 + k, 8 * d);
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(dv[i][d], p_a[i][k], b[0], b[1]);
                        mma_m16n8k16<T>(dv[i][d + 1], p_a[i][k], b[2], b[3]);
                    }
                }
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int d = 0; d < D / 8; d += 2) {
                    uint32_t b[4];
                    load_b_fragments_trans(b, shared.q[stage], chunk / 16 + k, 8 * d);
#pragma unroll
                    for (int i = 0; i < m_tiles; i++) {
                        mma_m16n8k16<T>(dk[i][d], ds_a[i][k], b[0], b[1]);
                        mma_m16n8k16<T>(dk[i][d + 1], ds_a[i][k], b[2], b[3]);
                    }
                }
        }
    }

    cp_async_wait<0>();
    __syncthreads();
    if (steps > 0)
        add_dq(steps - 1);
    __syncthreads(); /* K's tile is read no more: the gradients go out through it and V's */
#pragma unroll
    for (int i = 0; i < m_tiles; i++) {
        const int key = first_key + warp_key + 16 * i;
        store_gradient((T *)t.dk + kv_offset, key, p.seqlen_k, dk[i], p.scale, shared.k, warp_key + 16 * i);
        store_gradient((T *)t.dv + kv_offset, key, p.seqlen_k, dv[i], 1, shared.v, warp_key + 16 * i);
    }
}

constexpr int CONVERT_THREADS = 256;

/* dQ = scale x accumulator, in the problem's dtype and order. A thread takes one row of the upper and of the lower half of a
 * fragment: 4 lanes' registers, 64 bytes in, 2 x 16 bytes out. */
template <typename T, int D, int Br>
__global__ void __launch_bounds__(CONVERT_THREADS) convert_dq(Problem p, Tensors t, const float *dq_accumulator, size_t count) {
    size_t thread = (size_t)blockIdx.x * CONVERT_THREADS + threadIdx.x;
    if (thread >= count)
        return;
    const float *from = dq_accumulator + 16 * thread;
    int inside = thread % (Br * D / 16); /* in the tile: [warp][i][d][row of eight] */
    size_t padded_row = thread / (Br * D / 16) * Br;
    int warp = inside / 64, i = inside / 32 % 2, d = inside / 8 % 4;
    size_t matrix = padded_row / padded_rows(&p);
    int row = padded_row % padded_rows(&p) + 32 * (warp % (Br / 32)) + 16 * i + inside % 8;
    T *to = (T *)t.dq + matrix * p.seqlen_q * D + 32 * (warp / (Br / 32)) + 8 * d;
    uint32_t upper[4], lower[4];
    for (int j = 0; j < 4; j++) {
        uint4 bits = load_16(from + 4 * j);
        upper[j] = pack_pair<T>(p.scale * __uint_as_float(bits.x), p.scale * __uint_as_float(bits.y));
        lower[j] = pack_pair<T>(p.scale * __uint_as_float(bits.z), p.scale * __uint_as_float(bits.w));
    }
    if (row < p.seqlen_q)
        store_16(to + (size_t)row * D, make_uint4(upper[0], upper[1], upper[2], upper[3]));
    if (row + 8 < p.seqlen_q)
        store_16(to + (size_t)(row + 8) * D, make_uint4(lower[0], lower[1], lower[2], lower[3]));
}

extern "C" int backward_atomic_plan(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"LSE, delta", all_padded_rows(p) * sizeof(RowStatistics), nullptr};
    workspace[1] = Buffer{"dQ accumulator", all_padded_rows(p) * p->head_dim * sizeof(float), nullptr};
    return 2;
}

template <typename T, int D, int Br> static void run(const Problem &p, const Tensors &t, const Buffer *workspace) {
    using S = Shape<D, Br>;
    RowStatistics *statistics = (RowStatistics *)workspace[0].pointer;
    float *dq_accumulator = (float *)workspace[1].pointer;
    size_t rows = all_padded_rows(&p);
    LAUNCH((prepare_rows<T, D>), blocks_for(rows * (D / 8), PREPARE_THREADS), PREPARE_THREADS, 0, p, t, statistics,
           dq_accumulator, rows);
    LAUNCH((backward_atomic<T, D, Br>), ceil_div(p.seqlen_k, S::Bc) * p.batch * p.kv_heads, S::threads,
           sizeof(AtomicShared<T, D, Br>), p, t, statistics, dq_accumulator);
    LAUNCH((convert_dq<T, D, Br>), blocks_for(rows * D / 16, CONVERT_THREADS), CONVERT_THREADS, 0, p, t, dq_accumulator,
           rows * D / 16);
}

extern "C" void backward_atomic(const Problem *p, const Tensors *t, const Buffer *workspace) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        if (device_properties()->shared_bytes >= sizeof(AtomicShared<T, D, 64>))
            run<T, D, 64>(*p, *t, workspace);
        else
            run<T, D, 32>(*p, *t, workspace);
    }));
}
