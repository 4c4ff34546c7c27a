/* Lab 07: one query against many keys, in parts, which are then merged. judge it: make lab N=07     help: make lab N=07 HINT=1
 *
 *     S = scale * Q K^T       P = softmax(S), row by row       O = P V       LSE_i = ln(sum over j of e^S_ij)
 *
 * While a model writes text, a sequence has one new query, and a kernel with a block per query would leave most of the GPU idle. So the keys
 * of a query are cut into SPLITS = 4 parts. `split` computes the attention of one query to one part, with a softmax of that part alone, and
 * stores its O and LSE. `merge` puts the parts of a query together: with their LSE it knows how much each of them weighs.
 *
 *     keys of a query   [ part 0 | part 1 | part 2 | part 3 ]
 *                           |        |        |        |      split, block (s, y, z):  part s of query y of head z % heads
 *                        O, LSE   O, LSE   O, LSE   O, LSE                             of batch entry z / heads
 *                            \________|________|______/
 *                                  O, LSE                     merge, block (y, z):     query y of the same head
 *
 * Which keys a part has is yours to choose; none, if there are fewer keys than parts. Layout. The last index is the fastest; all of fp32.
 *     Q, O     [batch, heads, seqlen_q, D]             D = 64
 *     K, V     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE      [batch, heads, seqlen_q]
 *     partial_O     [SPLITS, batch, heads, seqlen_q, D], or as you like: merge alone reads it
 *     partial_LSE   [SPLITS, batch, heads, seqlen_q], likewise
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * A row that sees no key has O = 0 and LSE = -infinity.
 *
 * A block of split has WARPS = 4 warps of 32 threads and up to SHARED_BYTES = 8 KB of shared memory, which is one struct; a block of merge has
 * D = 64 threads and none.
 *     struct Shared { float o[WARPS][D]; ... };               outside of the kernel
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.o[warp][d]
 * D, SPLITS, WARPS and SHARED_BYTES are defined already, as constants.
 * You may call __syncthreads(), __shfl_xor_sync(0xffffffff, value, distance), min, max, fmaxf, expf, logf, INFINITY. Your own functions begin
 * with __device__. There are no #include, no static or global variables, and no host code.
 */
__global__ void split(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *partial_O,
                      float *partial_LSE) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)partial_O, (void)partial_LSE; /* your lines */
}

__global__ void merge(Problem p, const float *partial_O, const float *partial_LSE, float *O, float *LSE) {
    (void)p, (void)partial_O, (void)partial_LSE, (void)O, (void)LSE; /* your lines */
}
