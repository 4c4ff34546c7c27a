/* A solution of lab 02. */
__global__ void online(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *O, float *LSE) {
    int batch = blockIdx.z, head = blockIdx.y, row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.seqlen_q)
        return;
    int kv_head = head / (p.heads / p.kv_heads);
    int visible = visible_keys(&p, key_length(&p, key_lengths, batch), row);
    size_t flat = ((size_t)batch * p.heads + head) * p.seqlen_q + row;
    const float *k = K + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    const float *v = V + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    float q0 = p.scale * Q[flat * D + lane], q1 = p.scale * Q[flat * D + lane + 32];
    float m = -INFINITY, l = 0, o0 = 0, o1 = 0;
    for (int j = 0; j < visible; j++, k += D, v += D) {
        float s = q0 * k[lane] + q1 * k[lane + 32];
        for (int distance = 16; distance > 0; distance /= 2)
            s += __shfl_xor_sync(0xffffffff, s, distance);
        float m_new = fmaxf(m, s), alpha = expf(m - m_new), weight = expf(s - m_new);
        l = alpha * l + weight;
        o0 = alpha * o0 + weight * v[lane];
        o1 = alpha * o1 + weight * v[lane + 32];
        m = m_new;
    }
    O[flat * D + lane] = l > 0 ? o0 / l : 0;
    O[flat * D + lane + 32] = l > 0 ? o1 / l : 0;
    if (lane == 0)
        LSE[flat] = m + logf(l);
}
