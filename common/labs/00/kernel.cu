/* Lab 00: attention as it is defined.                                   judge it: make lab N=00     help: make lab N=00 HINT=1
 *
 *     S = scale * Q K^T       P = softmax(S), row by row       O = P V       LSE_i = ln(sum over j of e^S_ij)
 *
 * Softmax turns a row of scores into weights that add up to 1: P_ij = e^(S_ij - m_i) / l_i, where m_i is the row's largest score and l_i the
 * sum of its e^(S_ij - m_i). A thread has one query. It computes the query's row of S, and of this its row of O and its LSE.
 *
 *                        keys ->                          block (x, y, z), thread t:   query 128 x + t
 *     thread 0  query 0  [ S_00 S_01 S_02 ... ]                                        of query head y
 *     thread 1  query 1  [ S_10 S_11 S_12 ... ]                                        of batch entry z
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q, O     [batch, heads, seqlen_q, D]             D = 64
 *     K, V     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE      [batch, heads, seqlen_q]
 *     S        [batch, heads, seqlen_q, seqlen_k]      yours to use, or not: nobody reads it afterwards
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. The last block of a head has fewer queries than threads.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * A row that sees no key has O = 0 and LSE = -infinity.
 *
 * D and THREADS are defined already, as constants.
 * You may call min, max, fmaxf, expf, logf, INFINITY. Your own functions begin with __device__. There are no #include, no static or global
 * variables, and no host code.
 */
__global__ void naive(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *S, float *O, float *LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)S, (void)O, (void)LSE; /* your lines */
}
