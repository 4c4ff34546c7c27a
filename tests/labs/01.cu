/* A solution of lab 01. */
struct Shared {
    float q[Br][D + 1], k[Bc][D + 1];
};

__global__ void tiled_scores(Problem p, const float *Q, const float *K, const int *key_lengths, float *S) {
    SHARED_MEMORY(shared, Shared);
    int batch = blockIdx.z / p.heads, head = blockIdx.z % p.heads, first_row = blockIdx.y * Br, first = blockIdx.x * Bc;
    int kv_head = head / (p.heads / p.kv_heads), keys = key_length(&p, key_lengths, batch);
    const float *q = Q + ((size_t)blockIdx.z * p.seqlen_q + first_row) * D;
    const float *k = K + (((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k + first) * D;
    float *s = S + (size_t)blockIdx.z * p.seqlen_q * p.seqlen_k;
    for (int i = threadIdx.x; i < Br * D; i += THREADS)
        shared.q[i / D][i % D] = first_row + i / D < p.seqlen_q ? q[i] : 0;
    for (int i = threadIdx.x; i < Bc * D; i += THREADS)
        shared.k[i / D][i % D] = first + i / D < keys ? k[i] : 0;
    __syncthreads();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[4] = {};
    for (int d = 0; d < D; d++)
        for (int i = 0; i < 4; i++)
            sum[i] += shared.q[warp + 8 * i][d] * shared.k[lane][d];
    for (int i = 0; i < 4; i++) {
        int row = first_row + warp + 8 * i, column = first + lane;
        if (row < p.seqlen_q && column < p.seqlen_k)
            s[(size_t)row * p.seqlen_k + column] = column < visible_keys(&p, keys, row) ? p.scale * sum[i] : -INFINITY;
    }
}
