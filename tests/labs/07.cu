/* A solution of lab 07. */
struct Shared {
    float o[WARPS][D], m[WARPS], l[WARPS];
};

__global__ void split(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *partial_O,
                      float *partial_LSE) {
    SHARED_MEMORY(shared, Shared);
    int batch = blockIdx.z / p.heads, head = blockIdx.z % p.heads, row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int visible = visible_keys(&p, key_length(&p, key_lengths, batch), row), part = (visible + SPLITS - 1) / SPLITS;
    int first = blockIdx.x * part, end = min(first + part, visible);
    size_t flat = (size_t)blockIdx.z * p.seqlen_q + row;
    size_t keys = ((size_t)batch * p.kv_heads + head / (p.heads / p.kv_heads)) * p.seqlen_k * D;
    float q0 = p.scale * Q[flat * D + lane], q1 = p.scale * Q[flat * D + lane + 32];
    float m = -INFINITY, l = 0, o0 = 0, o1 = 0;
    for (int j = first + warp; j < end; j += WARPS) {
        const float *k = K + keys + (size_t)j * D, *v = V + keys + (size_t)j * D;
        float s = q0 * k[lane] + q1 * k[lane + 32];
        for (int distance = 16; distance > 0; distance /= 2)
            s += __shfl_xor_sync(0xffffffff, s, distance);
        float m_new = fmaxf(m, s), alpha = expf(m - m_new), weight = expf(s - m_new);
        l = alpha * l + weight;
        o0 = alpha * o0 + weight * v[lane];
        o1 = alpha * o1 + weight * v[lane + 32];
        m = m_new;
    }
    shared.o[warp][lane] = o0;
    shared.o[warp][lane + 32] = o1;
    if (lane == 0)
        shared.m[warp] = m, shared.l[warp] = l;
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    float largest = -INFINITY, sum = 0, o = 0;
    for (int w = 0; w < WARPS; w++)
        largest = fmaxf(largest, shared.m[w]);
    for (int w = 0; w < WARPS && largest > -INFINITY; w++) {
        float factor = expf(shared.m[w] - largest);
        sum += factor * shared.l[w];
        o += factor * shared.o[w][threadIdx.x];
    }
    size_t place = blockIdx.x * row_count(&p) + flat;
    partial_O[place * D + threadIdx.x] = sum > 0 ? o / sum : 0;
    if (threadIdx.x == 0)
        partial_LSE[place] = sum > 0 ? largest + logf(sum) : -INFINITY;
}

__global__ void merge(Problem p, const float *partial_O, const float *partial_LSE, float *O, float *LSE) {
    size_t flat = (size_t)blockIdx.y * p.seqlen_q + blockIdx.x;
    float largest = -INFINITY, sum = 0, o = 0;
    for (int s = 0; s < SPLITS; s++)
        largest = fmaxf(largest, partial_LSE[s * row_count(&p) + flat]);
    for (int s = 0; s < SPLITS && largest > -INFINITY; s++) {
        size_t place = s * row_count(&p) + flat;
        float weight = expf(partial_LSE[place] - largest);
        sum += weight;
        o += weight * partial_O[place * D + threadIdx.x];
    }
    O[flat * D + threadIdx.x] = sum > 0 ? o / sum : 0;
    if (threadIdx.x == 0)
        LSE[flat] = sum > 0 ? largest + logf(sum) : -INFINITY;
}
