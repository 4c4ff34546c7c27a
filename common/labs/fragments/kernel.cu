/* Lab fragments: S = scale * Q K^T on tensor cores.              judge it: make lab N=fragments     help: make lab N=fragments HINT=1
 *
 * One mma.m16n8k16 multiplies a 16 x 16 by a 16 x 8 matrix of fp16 numbers; a warp executes it together, and each lane brings its fragments of
 * A and B and keeps its fragment of C. notes/fragments.md draws them. ldmatrix fills them from shared memory.
 *
 *     __half tile rows of D = 64 in shared memory       ldmatrix_x4(r, row)                     four 8 x 8 matrices, r[0] to r[3]
 *     A: 16 queries x 16 of D, in a[4]                  mma_m16n8k16<__half>(c, a, b0, b1)      c[4] += A B, fp32
 *     B: 16 of D x 8 keys, in b0 and b1
 *
 * A block has a tile of S, Br = 64 queries by Bc = 64 keys, and loads its 64 rows of Q and of K into shared memory once.
 *
 *                       K tile x                          block (x, y, z):  keys     64 x .. 64 x + 63
 *                      [ 64 keys ]                                          queries  64 y .. 64 y + 63
 *     Q tile y  [64]   [ S tile  ]                                          of head z % heads of batch entry z / heads
 *
 * Layout. The last index is the fastest; Q and K are fp16, S is fp32.
 *     Q        [batch, heads, seqlen_q, D]             D = 64
 *     K        [batch, kv_heads, seqlen_k, D]          query head h reads K head h / (heads / kv_heads)
 *     S        [batch, heads, seqlen_q, seqlen_k]      all of it has to be written: -infinity where the query does not see the key
 *     key_lengths   [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. seqlen_q and seqlen_k need not be multiples of 64.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry: rows past them hold NaN
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 * The softmax and the product with V, which follow, are ours: so the judge speaks of O and LSE.
 *
 * A block has THREADS = 128 threads and up to SHARED_BYTES = 48 KB of shared memory, which is one struct:
 *     struct Shared { alignas(16) __half q[Br][D]; ... };     outside of the kernel; ldmatrix wants each row's 16 bytes aligned to 16
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.q[row][d]
 * D, Br, Bc, THREADS and SHARED_BYTES are defined already, as constants.
 * You may call ldmatrix_x4(uint32_t (&r)[4], const void *row), mma_m16n8k16, load_16 and store_16 (16 bytes at a time), __syncthreads(), min,
 * max, INFINITY, __float2half(0). Your own functions begin with __device__. There are no #include, no static or global variables, and no
 * host code.
 */
__global__ void mma_scores(Problem p, const __half *Q, const __half *K, const int *key_lengths, float *S) {
    (void)p, (void)Q, (void)K, (void)key_lengths, (void)S; /* your lines */
}
