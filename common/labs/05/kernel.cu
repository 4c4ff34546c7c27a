/* Lab 05: FlashAttention-2, the gradients, in plain CUDA.               judge it: make lab N=05     help: make lab N=05 HINT=1
 *
 * The forward pass left O and LSE, and dO comes from the layers above. Compute dQ, dK and dV without storing an N x N matrix:
 *
 *     P_ij = e^(S_ij - LSE_i), S = scale * Q K^T           dV = P^T dO
 *     dP = dO V^T       delta_i = sum over d of dO_id O_id dS_ij = P_ij (dP_ij - delta_i)
 *     dQ = scale * dS K                                    dK = scale * dS^T Q
 *
 * A block has a tile of Bc = 32 keys and walks over all queries, Br = 32 at a time, that read these keys: those of all query heads that share
 * the K/V head. dK and dV of its keys are its own. To dQ all blocks add, by atomicAdd(&dQ[i], value); dQ is 0 before the kernel starts.
 *
 *     queries  [tile 0]   |                                 block (x, y, z):  keys 32 x .. 32 x + 31
 *              [tile 1]   |  walk                                             of K/V head y
 *              [tile 2]   v                                                   of batch entry z
 *                   [ 32 keys ]
 *
 * Layout. The last index is the fastest; all of fp32.
 *     Q, O, dO, dQ     [batch, heads, seqlen_q, D]             D = 64
 *     K, V, dK, dV     [batch, kv_heads, seqlen_k, D]          query head h reads K/V head h / (heads / kv_heads)
 *     LSE              [batch, heads, seqlen_q]                -infinity for a row that sees no key
 *     key_lengths      [batch], or NULL: see key_length below
 *
 * p has p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k and p.scale. seqlen_q and seqlen_k need not be multiples of 32.
 *     int keys = key_length(&p, key_lengths, batch);          how many keys exist for this batch entry: the others have dK = dV = 0
 *     int visible = visible_keys(&p, keys, row);              how many of them this query sees: keys 0 .. visible - 1, maybe none
 *
 * A block has THREADS = 128 threads and up to SHARED_BYTES = 64 KB of shared memory, which is one struct:
 *     struct Shared { float q[Br][D]; ... };                  outside of the kernel
 *     SHARED_MEMORY(shared, Shared);                          inside: then shared.q[row][d]
 * D, Br, Bc, THREADS and SHARED_BYTES are defined already, as constants.
 * You may call __syncthreads(), __shfl_xor_sync(0xffffffff, value, distance), atomicAdd, min, max, expf, INFINITY. Your own functions begin
 * with __device__. There are no #include, no static or global variables, and no host code.
 */
__global__ void gradients(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, const float *O, const float *LSE,
                          const float *dO, float *dQ, float *dK, float *dV) {
    (void)p, (void)Q, (void)K, (void)V, (void)key_lengths, (void)O, (void)LSE, (void)dO, (void)dQ, (void)dK, (void)dV; /* your lines */
}
