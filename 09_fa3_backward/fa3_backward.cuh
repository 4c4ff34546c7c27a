/* fa3_backward.cuh - what the kernels of 09_fa3_backward share: the order of the key tiles, P and dS of a tile in registers,
 * the accumulator of dQ, and the kernels before and after. This is 05_fa2_backward's arithmetic on the registers of a
 * warpgroup. Nothing here is asynchronous.
 *
 * The gradients, with dP = dO V^T and delta = rowsum(dO o O) (notes/05_fa2_backward.md derives them):
 *
 *     P = e^(scale S - LSE)     dS = P (dP - delta)     dV = P^T dO     dK = scale dS^T Q     dQ = scale dS K
 *
 * S and dP are computed transposed. Rows are keys: then P^T and dS^T, which dV and dK have as left operands, are in the
 * registers that they must be in.
 */
#ifndef FA_FA3_BACKWARD_CUH
#define FA_FA3_BACKWARD_CUH

#include "../common/gpu/prepare_rows.cuh"
#include "../common/gpu/warpgroup.cuh"

/* ---- the order of the key tiles ---- */

/* Bc keys of one K/V head, and the queries that see any of them. */
struct KeyTile {
    int kv_matrix, first_key;     /* the head's number in K and V, through the batch; the tile's first key */
    int keys;                     /* that the batch entry has */
    int first_query, query_tiles; /* of each head of the group: the first tile's first query, and how many tiles there are */
    int steps;                    /* query tiles of all heads of the group */
};

/* Key tile number i in the order of work. Heads come in groups of `together` heads. Within a group the first key tile of every
 * head comes first: under a causal mask the most queries see it. */
__device__ inline KeyTile key_tile(const Problem &p, const int *key_lengths, int together, int i, int Br, int Bc) {
    const int key_tiles = ceil_div(p.seqlen_k, Bc), first_matrix = i / (together * key_tiles) * together;
    const int matrices = min(together, p.batch * p.kv_heads - first_matrix), turn = i - first_matrix * key_tiles;
    const int kv_matrix = first_matrix + turn % matrices, first_key = turn / matrices * Bc;
    const int keys = key_length(&p, key_lengths, kv_matrix / p.kv_heads);

    /* Under a causal mask row first_key - (keys - seqlen_q) is the first that sees any of these keys. */
    const int first_seeing = p.causal ? max(first_key - (keys - p.seqlen_q), 0) : 0, first_query = first_seeing / Br * Br;
    const int query_tiles = first_key < keys ? max(ceil_div(p.seqlen_q - first_query, Br), 0) : 0;
    return {kv_matrix, first_key, keys, first_query, query_tiles, p.heads / p.kv_heads * query_tiles};
}

/* The query tile of a step, in the order of the steps: the heads of a group follow each other. */
struct Walk {
    int matrix, row; /* the head's number in Q, through the batch; the tile's first query */
    __device__ Walk(const Problem &p, const KeyTile &here)
        : matrix(here.kv_matrix * (p.heads / p.kv_heads)), row(here.first_query) {}
    __device__ void next(const Problem &p, const KeyTile &here, int Br) {
        row += Br;
        if (row >= p.seqlen_q)
            matrix++, row = here.first_query;
    }
    __device__ size_t padded_row(const Problem &p) const { return (size_t)matrix * padded_rows(&p) + row; }
};

/* How many heads work together, and how many key tiles there are. Without a causal mask one head after the other; with a causal
 * mask as many as have their Q, dO and accumulator of dQ in half of L2. */
struct KeyTileOrder {
    int together, count;
};
inline KeyTileOrder key_tile_order(const Problem &p, int Bc) {
    const size_t element_bytes = 2 * dtype_bytes(p.dtype) + sizeof(float);
    const size_t head_bytes = (size_t)p.heads / p.kv_heads * p.seqlen_q * p.head_dim * element_bytes;
    const size_t fit = device_properties()->l2_bytes / 2 / head_bytes + 1;
    const int heads = p.batch * p.kv_heads, most = !p.causal ? 1 : fit < (size_t)heads ? (int)fit : heads;
    return {ceil_div(heads, ceil_div(heads, most)), heads * ceil_div(p.seqlen_k, Bc)};
}

/* What TMA loads: Br rows of Q or dO, Bc rows of K or V. (static: the forward pass, 08's, has a function of this name.) */
struct TensorMaps {
    TensorMap q, d_o, k, v;
};
template <typename T, int D> static TensorMaps tensor_maps(const Problem &p, const Tensors &t, int Br, int Bc) {
    const auto queries = [&](const void *rows) { return tensor_map<T, 128>(rows, D, p.seqlen_q, p.batch * p.heads, Br); };
    const auto keys = [&](const void *rows) { return tensor_map<T, 128>(rows, D, p.seqlen_k, p.batch * p.kv_heads, Bc); };
    return {queries(t.q), queries(t.d_o), keys(t.k), keys(t.v)};
}

/* ---- P and dS ---- */

/* LSE and delta of the queries of a tile, in shared memory. */
template <int Br> struct Statistics { alignas(128) float lse[Br], delta[Br]; };

/* Scores of S^T that a query does not see become -inf. Its first row is key `key`, its first column query `query`. */
template <int N> __device__ inline void mask_transposed(float (&s)[1][N][4], const Problem &p, int keys, int key, int query) {
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int j = 0; j < 2; j++) {
            const int visible = visible_keys(&p, keys, query + 8 * n + 2 * (threadIdx.x % 4) + j) - key;
            UNROLL for (int r = 0; r < 2; r++)
                if (row_of(r) >= visible)
                    s[0][n][2 * r + j] = -INFINITY;
        }
}

/* S^T becomes P^T = 2^(scale_log2 S^T - lse): 0 in columns whose query is not there or sees no key, and has lse = +inf. */
template <int N> __device__ inline void probabilities(float (&s)[1][N][4], const float *lse, float scale_log2) {
    UNROLL for (int n = 0; n < N; n++) {
        const float2 shift = *reinterpret_cast<const float2 *>(&lse[8 * n + 2 * (threadIdx.x % 4)]);
        UNROLL for (int r = 0; r < 2; r++) {
            s[0][n][2 * r] = exp2_approx(s[0][n][2 * r] * scale_log2 - shift.x);
            s[0][n][2 * r + 1] = exp2_approx(s[0][n][2 * r + 1] * scale_log2 - shift.y);
        }
    }
}

/* dP^T becomes dS^T = P^T (dP^T - delta), with P^T as it was rounded for dV: so its floats need not be kept. */
template <typename T, int N>
__device__ inline void score_gradients(float (&dp)[1][N][4], const uint32_t (&p_a)[N / 2][4], const float *delta) {
    UNROLL for (int n = 0; n < N; n++) {
        const float2 shift = *reinterpret_cast<const float2 *>(&delta[8 * n + 2 * (threadIdx.x % 4)]);
        UNROLL for (int r = 0; r < 2; r++) {
            const float2 p = unpack_pair<T>(p_a[n / 2][2 * (n % 2) + r]); /* to_operand has put it there */
            dp[0][n][2 * r] = p.x * (dp[0][n][2 * r] - shift.x);
            dp[0][n][2 * r + 1] = p.y * (dp[0][n][2 * r + 1] - shift.y);
        }
    }
}

/* ---- dQ ---- */

/* The accumulator of dQ is not stored row by row, but as warpgroups hold it: 64 rows behind each other, of these the 16 of
 * each warp, of these 8 columns at a time, and of these 16 x 8 floats four of each lane: [64 rows][warp][8 columns][lane][4].
 * So what a warp adds is one piece of memory, and a lane adds 16 bytes at once; convert_dq puts rows together. dq_place is
 * where this thread's four floats of the n-th 8 columns are, in the 64 rows from padded_row on. */
__device__ inline size_t dq_place(size_t padded_row, int head_dim, int n) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    return padded_row * head_dim + ((warp * (head_dim / 8) + n) * 32 + lane) * 4;
}

/* dQ = scale x accumulator, in the problem's dtype and order. A block takes 64 rows. */
template <typename T, int D>
__global__ void __launch_bounds__(128) convert_dq(Problem p, Tensors t, const float *dq_accumulator) {
    const size_t padded_row = (size_t)blockIdx.x * 64, matrix = padded_row / padded_rows(&p);
    float dq[1][D / 8][4];
    UNROLL for (int n = 0; n < D / 8; n++) {
        const float4 x = load_4(dq_accumulator + dq_place(padded_row, D, n));
        dq[0][n][0] = x.x, dq[0][n][1] = x.y, dq[0][n][2] = x.z, dq[0][n][3] = x.w;
    }
    const int row = padded_row % padded_rows(&p) + threadIdx.x / 32 * 16;
    store_rows<D>((T *)t.dq + matrix * p.seqlen_q * D, row, p.seqlen_q, dq, p.scale);
}

/* Workspace, the same for all kernels here: LSE in base 2, delta, the accumulator. */
inline int plan_backward(const Problem *p, Buffer *workspace) {
    int count = plan_statistics(p, workspace);
    workspace[count++] = Buffer{"dQ accumulator", all_padded_rows(p) * p->head_dim * sizeof(float), nullptr, 0};
    return count;
}

/* The three kernels: launch(statistics, accumulator) launches the one between the other two. */
template <typename T, int D, typename Launch>
void launch_backward(const Problem &p, const Tensors &t, const Buffer *workspace, Launch launch_main) {
    float *dq_accumulator = (float *)workspace[2].pointer;
    launch_prepare_rows<T, D>(p, t, workspace, dq_accumulator);
    launch_main(statistics_in(workspace), dq_accumulator);
    LAUNCH((convert_dq<T, D>), all_padded_rows(&p) / 64, 128, 0, p, t, dq_accumulator);
}

#endif
