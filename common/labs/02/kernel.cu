/* Lab 02: attention by online softmax.                                  judge it: make lab N=02     help: make lab N=02 HINT=1
 *
 *     S = scale * Q K^T       P = softmax(S), row by row       O = P V       LSE_i = ln(sum over j of e^S_ij)
 *
 * Walk over the keys once, and store neither S nor P. The softmax needs the largest score of the row, which is not known before the last key;
 * so keep the largest so far, m, the sum l of e^(S - m), and the sum o of e^(S - m) times the rows of V. All of these terms contain e^-m.
 * When a score raises m to m_new, one factor, e^(m - m_new), corrects l and o. At the end O is o / l, and LSE is m + ln l.
 *
 *                        keys, one after the other ->         block (x, y, z), warp w:   query 4 x + w
 *     warp 0  query 0    (m, l, o) -> (m, l, o) -> ...                                  of query head y
 *     warp 1  query 1    (m, l, o) -> (m, l, o) -> ...                                  of batch entry z
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q, O     [batch, heads, seqlen_q, D]             D = 64
 *     K, V     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE      [batch, heads, seqlen_q]
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. The last block of a head has fewer queries than warps.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * A row that sees no key has O = 0 and LSE = -infinity.
 *
 * A block has WARPS = 4 warps of 32 threads, which need nothing of each other: warp threadIdx.x / 32, lane threadIdx.x % 32. There is no
 * shared memory. Where the judge speaks of a tile, it means 4 queries (one block) or 32 keys.
 * D and WARPS are defined already, as constants.
 * You may call __shfl_xor_sync(0xffffffff, value, distance), min, max, fmaxf, expf, logf, INFINITY. Your own functions begin
 * with __device__. There are no #include, no static or global variables, and no host code.
 */
__global__ void online(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *O, float *LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)O, (void)LSE; /* your lines */
}
