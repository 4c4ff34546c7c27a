/* Lab 04: FlashAttention-2, forward, in plain CUDA.                     judge it: make lab N=04     help: make lab N=04 HINT=1
 *
 *     S = scale * Q K^T       P = softmax(S), row by row       O = P V       LSE_i = ln(sum over j of e^S_ij)
 *
 * Compute O and LSE without storing S or P in device memory. A block has a tile of Br = 32 queries and walks over the keys, Bc = 32 at a
 * time. For each of its rows it keeps the largest score so far, m, the sum l of e^(S - m), and the row of O, not yet divided by l.
 * When a tile raises m, both l and O are multiplied by e^(m_old - m_new). At the end O is divided by l, and LSE is m + ln l.
 *
 *                 keys 0..31    32..63   64..95              block (x, y, z):  queries 32 x .. 32 x + 31
 *     32 queries [  tile 0  ] [ tile 1 ] [ tile 2 ] ...                        of query head y
 *                   ------------------------->                                 of batch entry z
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q, O     [batch, heads, seqlen_q, D]             D = 64
 *     K, V     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE      [batch, heads, seqlen_q]
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. seqlen_q and seqlen_k need not be multiples of 32.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * A row that sees no key has O = 0 and LSE = -infinity.
 *
 * A block has THREADS = 128 threads and up to SHARED_BYTES = 48 KB of shared memory, which is one struct:
 *     struct Shared { float q[Br][D]; ... };                  outside of the kernel
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.q[row][d]
 * D, Br, Bc, THREADS and SHARED_BYTES are defined already, as constants.
 * You may call __syncthreads(), __syncwarp(), __shfl_xor_sync(0xffffffff, value, distance), min, max, fmaxf, expf, logf, INFINITY. Your own
 * functions begin with __device__. There are no #include, no static or global variables, and no host code.
 */
__global__ void flash2(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *O, float *LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)O, (void)LSE; /* your lines */
}
