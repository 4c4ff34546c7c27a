/* A solution of lab fragments. Rows of 72 elements, so that eight rows' 16 bytes lie in different banks. */
struct Shared {
    alignas(16) __half q[Br][D + 8];
    alignas(16) __half k[Bc][D + 8];
};

__global__ void mma_scores(Problem p, const __half *Q, const __half *K, const int *key_lengths, float *S) {
    SHARED_MEMORY(shared, Shared);
    int batch = blockIdx.z / p.heads, head = blockIdx.z % p.heads, first_row = blockIdx.y * Br, first = blockIdx.x * Bc;
    int kv_head = head / (p.heads / p.kv_heads), keys = key_length(&p, key_lengths, batch);
    const __half *q = Q + ((size_t)blockIdx.z * p.seqlen_q + first_row) * D;
    const __half *k = K + (((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k + first) * D;
    float *s = S + (size_t)blockIdx.z * p.seqlen_q * p.seqlen_k;
    uint4 zero = {};
    for (int i = threadIdx.x; i < Br * D / 8; i += THREADS) {
        int row = i / (D / 8), d = i % (D / 8) * 8;
        store_16(&shared.q[row][d], first_row + row < p.seqlen_q ? load_16(q + row * D + d) : zero);
        store_16(&shared.k[row][d], first + row < keys ? load_16(k + row * D + d) : zero);
    }
    __syncthreads();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float c[Bc / 8][4] = {};
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];
        ldmatrix_x4(a, &shared.q[16 * warp + lane % 16][d + 8 * (lane / 16)]);
        for (int n = 0; n < Bc; n += 16) {
            ldmatrix_x4(b, &shared.k[n + lane % 8 + 8 * (lane / 16)][d + 8 * (lane / 8 % 2)]);
            mma_m16n8k16<__half>(c[n / 8], a, b[0], b[1]);
            mma_m16n8k16<__half>(c[n / 8 + 1], a, b[2], b[3]);
        }
    }
    for (int n = 0; n < Bc / 8; n++)
        for (int i = 0; i < 4; i++) {
            int row = first_row + 16 * warp + lane / 4 + 8 * (i / 2), column = first + 8 * n + 2 * (lane % 4) + i % 2;
            if (row < p.seqlen_q && column < p.seqlen_k)
                s[(size_t)row * p.seqlen_k + column] = column < visible_keys(&p, keys, row) ? p.scale * c[n][i] : -INFINITY;
        }
}
