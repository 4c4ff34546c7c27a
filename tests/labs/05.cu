/* A solution of lab 05. Four neighboring threads share a row of the tile: a query while they compute scores, a key while they add up. */
struct Shared {
    float q[Br][D + 1], d_o[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + 1], ds[Br][Bc + 1];
};

__global__ void gradients(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, const float *O, const float *LSE,
                          const float *dO, float *dQ, float *dK, float *dV) {
    SHARED_MEMORY(shared, Shared);
    int batch = blockIdx.z, kv_head = blockIdx.y, first = blockIdx.x * Bc, group = p.heads / p.kv_heads;
    int keys = key_length(&p, key_lengths, batch), r = threadIdx.x / 4, c = threadIdx.x % 4;
    size_t key_offset = (((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k + first) * D;
    for (int i = threadIdx.x; i < Bc * D; i += THREADS) {
        bool exists = first + i / D < keys;
        shared.k[i / D][i % D] = exists ? K[key_offset + i] : 0;
        shared.v[i / D][i % D] = exists ? V[key_offset + i] : 0;
    }
    float dk[D / 4] = {}, dv[D / 4] = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first_row = 0; first_row < p.seqlen_q; first_row += Br) {
            size_t row = ((size_t)batch * p.heads + head) * p.seqlen_q + first_row;
            int rows = min(Br, p.seqlen_q - first_row);
            for (int i = threadIdx.x; i < Br * D; i += THREADS) {
                shared.q[i / D][i % D] = i / D < rows ? Q[row * D + i] : 0;
                shared.d_o[i / D][i % D] = i / D < rows ? dO[row * D + i] : 0;
            }
            __syncthreads();
            float delta = 0;
            for (int d = c; d < D && r < rows; d += 4)
                delta += shared.d_o[r][d] * O[(row + r) * D + d];
            delta += __shfl_xor_sync(0xffffffff, delta, 1);
            delta += __shfl_xor_sync(0xffffffff, delta, 2);
            int visible = r < rows ? visible_keys(&p, keys, first_row + r) : 0;
            float lse = visible > 0 ? LSE[row + r] : 0;
            for (int j = c; j < Bc; j += 4) {
                float s = 0, dp = 0;
                for (int d = 0; d < D; d++) {
                    s += shared.q[r][d] * shared.k[j][d];
                    dp += shared.d_o[r][d] * shared.v[j][d];
                }
                float weight = first + j < visible ? expf(p.scale * s - lse) : 0;
                shared.p[r][j] = weight;
                shared.ds[r][j] = p.scale * weight * (dp - delta);
            }
            __syncthreads();
            for (int i = 0; i < Br; i++)
                for (int n = 0; n < D / 4; n++) {
                    dv[n] += shared.p[i][r] * shared.d_o[i][c + 4 * n];
                    dk[n] += shared.ds[i][r] * shared.q[i][c + 4 * n];
                }
            for (int n = 0; n < D / 4 && r < rows; n++) {
                float dq = 0;
                for (int j = 0; j < Bc; j++)
                    dq += shared.ds[r][j] * shared.k[j][c + 4 * n];
                atomicAdd(&dQ[(row + r) * D + c + 4 * n], dq);
            }
            __syncthreads();
        }
    for (int n = 0; n < D / 4 && first + r < p.seqlen_k; n++) {
        dK[key_offset + r * D + c + 4 * n] = dk[n];
        dV[key_offset + r * D + c + 4 * n] = dv[n];
    }
}
