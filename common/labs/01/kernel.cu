/* Lab 01: S = scale * Q K^T, with tiles in shared memory.               judge it: make lab N=01     help: make lab N=01 HINT=1
 *
 * A block has a tile of S, Br = 32 queries by Bc = 32 keys. It loads the 32 rows of Q and the 32 rows of K that the tile needs into shared
 * memory, once, and multiplies there. Without tiles each of the 1024 scores would read 2 D elements of device memory; with them 64 rows are
 * read for all.
 *
 *                       K tile x                          block (x, y, z):  keys     32 x .. 32 x + 31
 *                      [ 32 keys ]                                          queries  32 y .. 32 y + 31
 *     Q tile y  [32]   [ S tile  ]                                          of head z % heads of batch entry z / heads
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q        [batch, heads, seqlen_q, D]             D = 64
 *     K        [batch, kv_heads, seqlen_k, D]          query head h reads K head h / (heads / kv_heads)
 *     S        [batch, heads, seqlen_q, seqlen_k]      all of it has to be written: -infinity where the query does not see the key
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. seqlen_q and seqlen_k need not be multiples of 32.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry: rows past them hold NaN
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * The softmax and the product with V, which follow, are ours: so the judge speaks of O and LSE.
 *
 * A block has THREADS = 256 threads and up to SHARED_BYTES = 48 KB of shared memory, which is one struct:
 *     struct Shared { float q[Br][D]; ... };                  outside of the kernel
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.q[row][d]
 * D, Br, Bc, THREADS and SHARED_BYTES are defined already, as constants.
 * You may call __syncthreads(), min, max, fmaxf, INFINITY. Your own functions begin with __device__. There are no #include, no static or
 * global variables, and no host code.
 */
__global__ void tiled_scores(Problem p, const float *Q, const float *K, const int *key_lengths, float *S) {
    (void)p, (void)Q, (void)K, (void)key_lengths, (void)S; /* your lines */
}
