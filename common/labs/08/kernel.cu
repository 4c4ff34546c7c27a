/* Lab 08: the consumer of a ring, on Hopper.                            judge it: make lab N=08     help: make lab N=08 HINT=1
 *
 * A producer warp, which is ours, asks TMA for the tile of Q and then for one tile of K after the other. You write what the four consumer warps,
 * a warpgroup, do: they multiply each tile with wgmma, S = scale * Q K^T, give its place in the ring back, and compute the softmax's
 * LSE_i = ln(sum over j of e^S_ij) online, as in lab 02. notes/hopper.md explains the words, and notes/hopper/ring.cu is a ring of the same kind.
 *
 *     producer     K 0   K 1                   K 2                  K 3          into ring.k[n % STAGES], STAGES = 2
 *     consumer           S 0                   S 1                  S 2          K 2 is loaded when the consumer is done with K 0
 *
 * A wgmma runs on by itself from wgmma_commit to wgmma_wait. First make the kernel right; then start the product of tile n + 1 before the softmax
 * of tile n, which can then run at the same time. The score counts the exponentials that are computed while no product runs.
 *
 * The ring
 *     ring.q           the 64 queries first_row .. first_row + 63, there when phase 0 of ring.q_full is over
 *     ring.k[s]        64 keys; tile n has the keys 64 n .. 64 n + 63, and is there when phase n / STAGES of ring.full[s] is over
 *     ring.empty[s]    phase n / STAGES is over when each of the four warps has arrived: then the producer overwrites tile n
 *
 * What you may call
 *     mbarrier_wait(&barrier, parity)      until the phase of this parity (phase % 2) is over
 *     mbarrier_arrive(&barrier)            one arrival; elect_one() is true in one lane of each warp
 *     wgmma_fence(d), wgmma<__half>(d, a, b, is_added), wgmma_commit(), wgmma_wait<0>(d)
 *         d is float d[8][4]: 64 x 64 of the product, of which warp w has the rows 16 w .. 16 w + 15. Of d[n] a lane has d[n][0], d[n][1] in row
 *         lane / 4, columns 8 n + 2 (lane % 4) and the next; d[n][2], d[n][3] eight rows below. One wgmma takes 16 columns of D.
 *     wgmma_advance(ring.q.descriptor(), ring.q.offset(step))      the columns 16 step .. 16 step + 15 of Q; of K likewise
 *
 * The arguments
 *     tiles        of keys: seqlen_k / 64, rounded up. All of them come, and each place has to be given back
 *     keys         how many keys exist: rows of K past them hold NaN, rows past seqlen_k hold 0
 *     S            [seqlen_q, seqlen_k] of this head, fp32, in device memory. All of it has to be written: -infinity where a query does not see
 *                  the key. visible_keys(&p, keys, row): how many it sees. Queries past seqlen_q are not stored
 *     LSE          [seqlen_q] of this head; -infinity for a query that sees no key
 * You may also call __shfl_xor_sync(0xffffffff, value, distance), fmaxf, expf and logf. The product of the weights with V, which follows, is
 * ours, so the judge speaks of O as well as of LSE. There are no #include, no static or global
 * variables, and no host code.
 */
__device__ void consume(Ring &ring, int tiles, const Problem &p, int keys, int first_row, float *S, float *LSE) {
    (void)tiles, (void)p, (void)keys, (void)first_row, (void)S, (void)LSE; /* your lines; these keep the ring turning */
    for (int n = 0; n < tiles; n++) {
        mbarrier_wait(&ring.full[n % STAGES], n / STAGES % 2);
        if (elect_one())
            mbarrier_arrive(&ring.empty[n % STAGES]);
    }
}
