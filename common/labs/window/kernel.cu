/* Lab window: FlashAttention-2 with a sliding window.          judge it: make lab N=window     help: make lab N=window HINT=1
 *
 *     S = scale * Q K^T       P = softmax(S), row by row       O = P V       LSE_i = ln(sum over j of e^S_ij)
 *
 * Lab 04 once more, in which each query sees only the last `window` keys up to its own place. Begin with your own kernel of lab 04.
 * The query in row i stands at pos = i + keys - seqlen_q, where keys is what key_length returns: the last query stands at the last
 * key. It sees the keys j with pos - window < j <= pos that visible_keys lets it see, too. The mask is the easy half of the lab. The other is
 * not to load tiles that no query of the block sees: then the time no longer grows with the square of the length.
 *
 *                 keys 0..31    32..63   64..95   96..127          block (x, y, z):  queries 32 x .. 32 x + 31
 *     32 queries [ skipped ] [ masked ] [ whole ] [ masked ]                         of query head y
 *                                                                                    of batch entry z
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
__global__ void windowed(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, int window, float *O,
                         float *LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)window, (void)O, (void)LSE; /* your lines */
}
