/* problem.h - the attention problem every stage solves: its shape, its tensors, its mask.
 *
 *     S = scale * Q K^T        scores           [seqlen_q, seqlen_k]   one matrix per (batch, head)
 *     P = softmax(S)           probabilities    row by row
 *     O = P V                  output           [seqlen_q, head_dim]
 *     LSE_i = ln sum_j e^S_ij  logsumexp        [seqlen_q]
 *
 * All tensors are contiguous, [batch, heads, seqlen, head_dim], the last index fastest. Names follow the FlashAttention
 * papers (Dao et al. 2022, Dao 2023): Br x Bc is a tile of S, m a row's running maximum, l its running sum. "row" counts
 * queries, "column" counts keys; there is no x or y.
 */
#ifndef FA_PROBLEM_H
#define FA_PROBLEM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

typedef enum { DTYPE_FP16, DTYPE_BF16, DTYPE_FP32, DTYPE_COUNT } Dtype;

#define MAX_SETTINGS 6

/* A block mask (10_block_sparse): which keys it leaves of those that causal and key length leave; the same for all batch entries
 * and heads. All zero: all of them. block_mask.h evaluates it. */
typedef struct {
    int window;                /* the query at `pos` keeps keys pos - window < j <= pos; 0: no window */
    int sink;                  /* beside the window keys j < sink with j <= pos; 0: none */
    int stride;                /* key blocks 0, stride, 2 stride, ... and the one that pos is in; 0: no strides */
    const int *documents;      /* [seqlen_k][2]: of each position its document's first key and the first behind it; or NULL */
    const unsigned char *kept; /* [query blocks][key blocks]: 1: this block is kept, 0: it is not; or NULL */
} BlockMask;

enum { MASK_BLOCK = 128 }; /* rows and columns of a block of the mask */

/* On the host: the text that --blocks was given, and what it says. One allocation. */
typedef struct Blocks Blocks;
struct Blocks {
    const char *text;
    BlockMask mask; /* its pointers on the host */
    /* For the judge, whether the query in this row, which stands at `pos`, keeps a key: worked out of the text and not of `mask`, on
     * purpose. A mistake there would be made by the kernels and by their judge alike, and nobody would notice. */
    int (*defines)(const Blocks *blocks, int pos, int row, int key);
};

/* What happens to a score between the two products (11_score_mod): S' = f(S, batch, head, query, key). All zero: S' = S. score.h has
 * the keys that it leaves, gpu/score.cuh the function. */
typedef struct {
    float softcap;      /* C: S becomes C tanh(S / C), before anything else; 0: it does not */
    int alibi;          /* 1: minus the head's slope times the distance from query to key */
    int window;         /* 1: the query at `pos` sees keys pos - left <= j <= pos + right; 0: no window */
    int left, right;
    const float *sinks; /* [heads]: one more score in every row of the head, which has no key and no value; NULL: none */
} Score;

/* On the host: the text that --score was given, and what it says. One allocation. For the judge, worked out of the text likewise: whether
 * the query at `pos` sees a key, and what the score s of the two becomes, f(s), and f'(s). */
typedef struct {
    double value, derivative;
} DefinedScore;
typedef struct ScoreMod ScoreMod;
struct ScoreMod {
    const char *text;
    Score score; /* its pointer on the host */
    int (*keeps)(const ScoreMod *mod, int pos, int key);
    DefinedScore (*defines)(const ScoreMod *mod, int heads, int head, int pos, int key, double s);
};

/* The shape and the mask. Passed to kernels by value. */
typedef struct {
    int batch;
    int heads;                  /* query heads Hq */
    int kv_heads;               /* key/value heads Hkv; divides heads */
    int seqlen_q;               /* queries per head */
    int seqlen_k;               /* keys per head, as stored */
    int head_dim;               /* D */
    Dtype dtype;                /* of Q, K, V and O; accumulation is always fp32 */
    int causal;                 /* 1: query i sees keys j <= i + (key length - seqlen_q), aligned to the bottom right */
    float scale;                /* multiplies Q K^T, 1/sqrt(D) unless given */
    int settings[MAX_SETTINGS]; /* the stage's own options, in the order of its table (stage.h: Setting) */
    const Blocks *blocks;       /* for the host alone; NULL: no block mask. Kernels find it in Tensors */
    const ScoreMod *score;      /* likewise; NULL: S' = S */
} Problem;

/* batch x heads may become a grid's y or z, which ends at 65535: the harness checks the product, too. Rows are counted
 * in ints, and kernels round them up to whole tiles: half the range of int leaves room for that. */
#define MAX_BATCH 65535
#define MAX_HEADS 65535
#define MAX_SEQLEN (1 << 30)
#define MAX_HEAD_DIM 256

/* Device pointers. q, o, d_o, dq: [batch, heads, seqlen_q, head_dim]; k, v, dk, dv: [batch, kv_heads, seqlen_k, head_dim];
 * lse: [batch, heads, seqlen_q], fp32, natural logarithm. Passed to kernels by value. */
typedef struct {
    const void *q, *k, *v;
    void *o;
    float *lse;
    const int *key_lengths; /* [batch]: keys past a batch entry's length do not exist. NULL: all seqlen_k of them do */
    BlockMask mask;         /* its pointers on the device; all zero in stages without block masks */
    Score score;            /* its pointer on the device; all zero in stages without score mods */
    const void *d_o;        /* backward only: the upstream gradient, and the three gradients */
    void *dq, *dk, *dv;
    float *d_sinks; /* [heads]: the gradient of score.sinks, if there are any */
    const int *lengths_on_host; /* key_lengths once more, for a launcher that has to know them */
} Tensors;

/* Q, K, V and dO on the host, in the problem's dtype and shapes. */
typedef struct {
    void *q, *k, *v;
    void *d_o; /* NULL in a forward stage */
} HostTensors;

/* One piece of workspace, named by its purpose so that memory can be reported by purpose. */
typedef struct {
    const char *purpose; /* "S", "P", "partial O", ... */
    size_t bytes;
    void *pointer; /* on the device; filled in by the harness */
    int zeroed;    /* 1: holds zeros before the first launch, and each launch leaves zeros behind; 0: NaN at first */
} Buffer;

#define MAX_WORKSPACE_BUFFERS 120 /* 15 on each of eight devices */

static inline size_t dtype_bytes(Dtype dtype) { return dtype == DTYPE_FP32 ? 4 : 2; }

static inline const char *dtype_name(Dtype dtype) {
    static const char *const NAMES[] = {"fp16", "bf16", "fp32"};
    return NAMES[dtype];
}

/* Rows of the problem (elements of LSE), elements of Q (and of O), of K (and of V), of S. 64-bit: they pass 2^31 on real problems. */
HOST_DEVICE static inline size_t row_count(const Problem *p) { return (size_t)p->batch * p->heads * p->seqlen_q; }
HOST_DEVICE static inline size_t query_elements(const Problem *p) { return row_count(p) * p->head_dim; }
HOST_DEVICE static inline size_t key_elements(const Problem *p) {
    return (size_t)p->batch * p->kv_heads * p->seqlen_k * p->head_dim;
}
HOST_DEVICE static inline size_t score_elements(const Problem *p) { return row_count(p) * p->seqlen_k; }

/* Keys that exist for this batch entry. */
HOST_DEVICE static inline int key_length(const Problem *p, const int *key_lengths, int batch) {
    return key_lengths ? key_lengths[batch] : p->seqlen_k;
}

/* How many keys query `row` sees: columns 0 .. visible_keys - 1. Without a block mask the whole mask is this one number, because
 * both masks (causal, key length) keep a prefix of the keys. 0 for a row that sees none: then O = 0 and LSE = -inf. */
HOST_DEVICE static inline int visible_keys(const Problem *p, int key_length, int row) {
    if (!p->causal)
        return key_length;
    int last = row + (key_length - p->seqlen_q) + 1;
    return last < 0 ? 0 : last < key_length ? last : key_length;
}

/* A row counted through the whole problem, as LSE is indexed, taken apart and put together. */
typedef struct {
    int batch, head, row;
} RowIndex;
HOST_DEVICE static inline RowIndex row_index(const Problem *p, size_t row) {
    size_t matrix = row / p->seqlen_q; /* which (batch, head) */
    RowIndex index = {(int)(matrix / p->heads), (int)(matrix % p->heads), (int)(row % p->seqlen_q)};
    return index;
}
HOST_DEVICE static inline size_t flat_row(const Problem *p, RowIndex index) {
    return ((size_t)index.batch * p->heads + index.head) * p->seqlen_q + index.row;
}

/* The K/V head that query head `head` reads: groups of heads/kv_heads neighbors share one. */
HOST_DEVICE static inline int kv_head_of(const Problem *p, int head) { return head / (p->heads / p->kv_heads); }

/* Offsets, in elements, of one head's matrix inside Q/O and inside K/V. 64 bits wide. */
HOST_DEVICE static inline size_t query_head_offset(const Problem *p, int batch, int head) {
    return ((size_t)batch * p->heads + head) * p->seqlen_q * p->head_dim;
}
HOST_DEVICE static inline size_t key_head_offset(const Problem *p, int batch, int kv_head) {
    return ((size_t)batch * p->kv_heads + kv_head) * p->seqlen_k * p->head_dim;
}

#endif
