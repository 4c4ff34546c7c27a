/* A solution of lab 00. */
__global__ void naive(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *S, float *O, float *LSE) {
    int batch = blockIdx.z, head = blockIdx.y, row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= p.seqlen_q)
        return;
    int kv_head = head / (p.heads / p.kv_heads);
    int visible = visible_keys(&p, key_length(&p, key_lengths, batch), row);
    size_t flat = ((size_t)batch * p.heads + head) * p.seqlen_q + row;
    const float *q = Q + flat * D, *k = K + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    const float *v = V + ((size_t)batch * p.kv_heads + kv_head) * p.seqlen_k * D;
    float *s = S + flat * p.seqlen_k, m = -INFINITY, l = 0, o[D] = {};
    for (int j = 0; j < visible; j++) {
        float dot = 0;
        for (int d = 0; d < D; d++)
            dot += q[d] * k[(size_t)j * D + d];
        s[j] = p.scale * dot;
        m = fmaxf(m, s[j]);
    }
    for (int j = 0; j < visible; j++) {
        float weight = expf(s[j] - m);
        l += weight;
        for (int d = 0; d < D; d++)
            o[d] += weight * v[(size_t)j * D + d];
    }
    for (int d = 0; d < D; d++)
        O[flat * D + d] = l > 0 ? o[d] / l : 0;
    LSE[flat] = l > 0 ? m + logf(l) : -INFINITY;
}
