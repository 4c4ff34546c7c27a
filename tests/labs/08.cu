/* A solution of lab 08. */
__device__ void consume(Ring &ring, int tiles, const Problem &p, int keys, int first_row, float *S) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mbarrier_wait(&ring.q_full, 0);
    for (int n = 0; n < tiles; n++) {
        float d[8][4];
        auto &k = ring.k[n % STAGES];
        mbarrier_wait(&ring.full[n % STAGES], n / STAGES % 2);
        wgmma_fence(d);
        UNROLL for (int step = 0; step < 4; step++)
            wgmma<__half>(d, wgmma_advance(ring.q.descriptor(), ring.q.offset(step)), wgmma_advance(k.descriptor(), k.offset(step)), step > 0);
        wgmma_commit();
        wgmma_wait<0>(d);
        if (elect_one())
            mbarrier_arrive(&ring.empty[n % STAGES]);
        for (int i = 0; i < 32; i += 2) {
            int row = first_row + 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = 64 * n + 8 * (i / 4) + 2 * (lane % 4);
            if (row >= p.seqlen_q)
                continue;
            int visible = visible_keys(&p, keys, row);
            float *to = S + (size_t)row * p.seqlen_k + column;
            float2 s = make_float2(column < visible ? p.scale * d[i / 4][i % 4] : -INFINITY,
                                   column + 1 < visible ? p.scale * d[i / 4][i % 4 + 1] : -INFINITY);
            if (p.seqlen_k % 2 == 0 && column < p.seqlen_k)
                *reinterpret_cast<float2 *>(to) = s; /* 8 bytes at a time, if each row begins at a multiple of 8 */
            else {
                if (column < p.seqlen_k)
                    to[0] = s.x;
                if (column + 1 < p.seqlen_k)
                    to[1] = s.y;
            }
        }
    }
}
