/* A solution of lab 08. While the tensor cores multiply the next tile of K, the warps do the softmax of this one. */
__device__ void multiply(float (&d)[8][4], Ring &ring, int n) {
    auto &k = ring.k[n % STAGES];
    mbarrier_wait(&ring.full[n % STAGES], n / STAGES % 2);
    wgmma_fence(d);
    UNROLL for (int step = 0; step < 4; step++)
        wgmma<__half>(d, wgmma_advance(ring.q.descriptor(), ring.q.offset(step)), wgmma_advance(k.descriptor(), k.offset(step)), step > 0);
    wgmma_commit();
}

/* The place of tile n is free for the producer. */
__device__ void finish_product(float (&d)[8][4], Ring &ring, int n) {
    wgmma_wait<0>(d);
    if (elect_one())
        mbarrier_arrive(&ring.empty[n % STAGES]);
}

/* Two neighboring scores, 8 bytes at a time, if each row begins at a multiple of 8. */
__device__ void store(float *row, int column, int columns, float s0, float s1) {
    if (columns % 2 == 0 && column < columns)
        *reinterpret_cast<float2 *>(row + column) = make_float2(s0, s1);
    else {
        if (column < columns)
            row[column] = s0;
        if (column + 1 < columns)
            row[column + 1] = s1;
    }
}

__device__ void consume(Ring &ring, int tiles, const Problem &p, int keys, int first_row, float *S, float *LSE) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float s[8][4], next[8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    mbarrier_wait(&ring.q_full, 0);
    multiply(s, ring, 0);
    finish_product(s, ring, 0);
    for (int n = 0; n < tiles; n++) {
        if (n + 1 < tiles)
            multiply(next, ring, n + 1);
        for (int r = 0; r < 2; r++) { /* a lane has columns of two rows, and its quad has all of them */
            int row = first_row + 16 * warp + lane / 4 + 8 * r, visible = row < p.seqlen_q ? visible_keys(&p, keys, row) : 0;
            float m_new = m[r], sum = 0;
            for (int i = 0; i < 8; i++) {
                int column = 64 * n + 8 * i + 2 * (lane % 4);
                float s0 = column < visible ? p.scale * s[i][2 * r] : -INFINITY;
                float s1 = column + 1 < visible ? p.scale * s[i][2 * r + 1] : -INFINITY;
                if (row < p.seqlen_q)
                    store(S + (size_t)row * p.seqlen_k, column, p.seqlen_k, s0, s1);
                m_new = fmaxf(m_new, fmaxf(s0, s1));
                s[i][2 * r] = s0, s[i][2 * r + 1] = s1;
            }
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 1));
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 2));
            float shift = m_new == -INFINITY ? 0 : m_new;
            for (int i = 0; i < 8; i++)
                sum += expf(s[i][2 * r] - shift) + expf(s[i][2 * r + 1] - shift);
            l[r] = expf(m[r] - shift) * l[r] + sum; /* the lane's part of the row's sum */
            m[r] = m_new;
        }
        if (n + 1 < tiles) {
            finish_product(next, ring, n + 1);
            for (int i = 0; i < 32; i++)
                s[i / 4][i % 4] = next[i / 4][i % 4];
        }
    }
    for (int r = 0; r < 2; r++) {
        int row = first_row + 16 * warp + lane / 4 + 8 * r;
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 1);
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 2);
        if (lane % 4 == 0 && row < p.seqlen_q)
            LSE[row] = m[r] + logf(l[r]);
    }
}
