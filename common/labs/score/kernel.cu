/* Lab score: FlashAttention-2 with the scores that models use.             judge it: make lab N=score     help: make lab N=score HINT=1
 *
 *     S' = f(scale * Q K^T)       P = softmax(S'), row by row       O = P V       LSE_i = ln(sum over j of e^S'_ij)
 *
 * Lab 04 once more, with a function f between the two products. Begin with your own kernel of lab 04. f depends on the score, the head, the
 * query and the key, and has up to two parts:
 *
 *     soft cap    if softcap > 0: s becomes softcap * tanh(s / softcap), which lies between -softcap and softcap
 *     ALiBi       then, if alibi is 1: slope * |pos - j| is subtracted, where pos is the query's position, j the key, and the slope that of the head
 *
 * The query in row i is at position pos = i + keys - seqlen_q, where keys is what key_length returns: the last query is at the last key.
 * alibi_slope(p.heads, head) is the slope of query head `head`. A key that the query does not see has a weight of 0, whatever f is.
 *
 *     sink        if sinks is not NULL: each row of query head h has one more score, sinks[h], which takes part in the softmax but belongs to no
 *                 key and has no value. It is part of LSE. f does not apply to it
 *
 *     the scores of a row    [ f(s_0)  f(s_1)  ...  f(s_visible-1)  -inf  -inf ... ]  sink           the row's weights with it add up to 1
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q, O     [batch, heads, seqlen_q, D]             D = 64
 *     K, V     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE      [batch, heads, seqlen_q]
 *     sinks    [heads], or NULL
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. seqlen_q and seqlen_k need not be multiples of 32.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * A row that sees no key has O = 0, and LSE = the head's sink, or -infinity if there are no sinks.
 *
 * Block (x, y, z) has queries 32 x .. 32 x + 31 of query head y of batch entry z, THREADS = 128 threads, and up to SHARED_BYTES = 48 KB of
 * shared memory, which is one struct:
 *     struct Shared { float q[Br][D]; ... };                  outside of the kernel
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.q[row][d]
 * D, Br, Bc, THREADS and SHARED_BYTES are defined already, as constants.
 * You may call __syncthreads(), __syncwarp(), __shfl_xor_sync(0xffffffff, value, distance), min, max, abs, fmaxf, expf, logf, tanhf, INFINITY.
 * Your own functions, and those of a struct that has one, begin with __device__. There are no #include, no static or global variables,
 * and no host code.
 */
__global__ void scored(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float softcap, int alibi,
                       const float *sinks, float *O, float *LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)softcap, (void)alibi, (void)sinks, (void)O, (void)LSE; /* your lines */
}
