/* A solution of lab 04. Four neighboring threads share a row of the tile. */
struct Shared {
    float q[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], s[Br][Bc + 1];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the tiles fit");

__global__ void flash2(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *O, float *LSE) {
    SHARED_MEMORY(shared, Shared);
    int batch = blockIdx.z, head = blockIdx.y, first_row = blockIdx.x * Br;
    int kv_head = head / (p.heads / p.kv_heads);
    int keys = key_length(&p, key_lengths, batch);
    const float *q = Q + ((size_t)batch * p.heads + head) * p.seqlen_q * D;
    const float *k = K + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    const float *v = V + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    float *o_out = O + ((size_t)batch * p.heads + head) * p.seqlen_q * D;
    float *lse_out = LSE + ((size_t)batch * p.heads + head) * p.seqlen_q;
    int rows = min(Br, p.seqlen_q - first_row);

    for (int i = threadIdx.x; i < Br * D; i += THREADS)
        shared.q[i / D][i % D] = i / D < rows ? q[(size_t)first_row * D + i] : 0;

    int r = threadIdx.x / 4, c = threadIdx.x % 4;
    int visible = visible_keys(&p, keys, first_row + r);
    int last = visible_keys(&p, keys, first_row + rows - 1); /* the last row sees most */
    float m = -INFINITY, l = 0, o[D / 4] = {};
    for (int first = 0; first < last; first += Bc) {
        for (int i = threadIdx.x; i < Bc * D; i += THREADS) {
            bool exists = first + i / D < keys;
            shared.k[i / D][i % D] = exists ? k[(size_t)first * D + i] : 0;
            shared.v[i / D][i % D] = exists ? v[(size_t)first * D + i] : 0;
        }
        __syncthreads();
        float s[Bc / 4], m_new = m;
        for (int j = 0; j < Bc / 4; j++) {
            float dot = 0;
            for (int d = 0; d < D; d++)
                dot += shared.q[r][d] * shared.k[c + 4 * j][d];
            s[j] = first + c + 4 * j < visible ? p.scale * dot : -INFINITY;
            m_new = fmaxf(m_new, s[j]);
        }
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 1));
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 2));
        float shift = m_new == -INFINITY ? 0 : m_new;
        float alpha = expf(m - shift), sum = 0;
        for (int j = 0; j < Bc / 4; j++) {
            float weight = expf(s[j] - shift);
            shared.s[r][c + 4 * j] = weight;
            sum += weight;
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        l = alpha * l + sum;
        m = m_new;
        __syncwarp();
        for (int i = 0; i < D / 4; i++)
            o[i] *= alpha;
        for (int j = 0; j < Bc; j++)
            for (int i = 0; i < D / 4; i++)
                o[i] += shared.s[r][j] * shared.v[j][c + 4 * i];
        __syncthreads();
    }
    if (r < rows) {
        for (int i = 0; i < D / 4; i++)
            o_out[(size_t)(first_row + r) * D + c + 4 * i] = l > 0 ? o[i] / l : 0;
        if (c == 0)
            lse_out[first_row + r] = m + logf(l);
    }
}
